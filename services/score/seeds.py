"""Which seeds detectors are developed on, and which are kept for tests."""

TEST_SEEDS = range(900_000, 1_000_000)
"""Nothing is developed or tuned on these. All others are training seeds, the scenarios' own (dates) among them."""


def kind_of_seeds(first: int | None, count: int = 1) -> str:
    """Return in words what seeds these are: `count` of each scenario from `first` on, None for its own."""
    if first is not None and TEST_SEEDS.start <= first < TEST_SEEDS.stop:
        kind = "test seeds (nothing was developed on them)"
    else:
        kind = "training seeds"
    return f"{kind}: {count} of each scenario" + ("" if first is None else f", from {first}")
