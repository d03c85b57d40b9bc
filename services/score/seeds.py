"""Which seeds detectors are developed on, and which are kept for tests."""

from collections.abc import Iterable

TEST_SEEDS = range(900_000, 1_000_000)
"""Nothing is developed or tuned on these. All others are training seeds, the scenarios' own (dates) among them."""


def kinds_of_seeds(seeds: Iterable[int | None]) -> str:
    """Return in words what the seeds of recordings are, None of one that was not generated; empty if all are."""
    generated = [seed for seed in seeds if seed is not None]
    tests = sum(seed in TEST_SEEDS for seed in generated)
    kinds = {"training seeds": len(generated) - tests, "test seeds (nothing was developed on them)": tests}
    words = ", ".join(f"from {kind}: {count}" for kind, count in kinds.items() if count)
    return f"recordings generated {words}" if words else ""
