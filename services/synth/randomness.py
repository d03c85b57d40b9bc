"""Random numbers that depend on the seed and on who asks, and on nothing else."""

import numpy as np


def generator(seed: int, subsystem: str) -> np.random.Generator:
    """Return the generator of one subsystem.

    Each subsystem has its own, so that a new one, or more draws in one, leaves the others' numbers as they were.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *subsystem.encode()])))
