"""Warnings of libraries about tiny models say nothing here."""

from __future__ import annotations

import warnings


def quiet() -> None:
    """Silence them."""
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
