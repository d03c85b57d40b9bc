"""The pages of docs/reference by file name."""

from services.cli.reference import commands, detectors, metrics, settings, wire, xids


def pages() -> dict[str, str]:
    """Return every page that is made from the code."""
    return {
        "detectors.md": detectors.detectors(),
        "detectors-yaml.md": detectors.settings(),
        "alerts.md": detectors.alerts(),
        "settings.md": settings.settings(),
        "metrics.md": metrics.metrics(),
        "topics.md": wire.topics(),
        "series.md": wire.series(),
        "xids.md": xids.xids(),
        "commands.md": commands.commands(),
    }
