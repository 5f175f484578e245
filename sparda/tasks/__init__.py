"""Long-context tasks whose answers are known: RULER's synthetic ones, at any length.

    sample = make("niah_multikey_prose", tokenizer, context=4096, seed=7)
    sample.share(reply)          # of the answers that the reply contains

``niah_single`` is the one-needle prompt of the chapters, with the place of its needle.
"""

from sparda.tasks.haystack import NOISE
from sparda.tasks.ruler import TASKS, Sample, make
from sparda.tasks.single import Needle, niah_single

__all__ = ["NOISE", "TASKS", "Needle", "Sample", "make", "niah_single"]
