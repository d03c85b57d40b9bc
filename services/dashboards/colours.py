"""Colours that people with any kind of colour vision can distinguish: the eight of Okabe and Ito (2008)."""

from services.dashboards.fields import Color, Step, Thresholds

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
RED = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#999999"

BY_THRESHOLD = Color(mode="thresholds")
# One hue after the other in order of the last value: who stands out in value does so in colour.
BY_VALUE = Color(mode="continuous-viridis", series_by="last")


def bad_above(warn: float, bad: float) -> Thresholds:
    """Return blue below `warn`, orange from there, vermilion from `bad`."""
    return Thresholds(steps=(Step(color=SKY), Step(color=ORANGE, value=warn), Step(color=RED, value=bad)))


def bad_below(bad: float, warn: float) -> Thresholds:
    """Return vermilion below `bad`, orange below `warn`, blue from there."""
    return Thresholds(steps=(Step(color=RED), Step(color=ORANGE, value=bad), Step(color=SKY, value=warn)))


def any_is_bad() -> Thresholds:
    """Return blue for nothing, vermilion for one and more."""
    return Thresholds(steps=(Step(color=SKY), Step(color=RED, value=1)))


def no_judgement() -> Thresholds:
    """Return one colour: the value says nothing about good or bad."""
    return Thresholds(steps=(Step(color=BLUE),))
