"""A tiny model on disk, with packed tokens."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def tiny_folder(tiny_model):
    """The folder that holds the model and its packed tokens."""
    folder = tiny_model.parent
    for name, seed in (("train", 0), ("held_out", 1)):
        tokens = np.random.default_rng(seed).integers(3, 101, (4, 512)).astype(np.uint16)
        np.save(folder / f"{name}.npy", tokens)
    return folder
