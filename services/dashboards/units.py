"""Values as Grafana shows them in its units, as far as the dashboards use them."""

import math
from datetime import UTC, datetime

_SI = ("", "k", "M", "G", "T", "P")
# Grafana's name of a unit, and what is put behind the number, with prefixes or without.
_PREFIXED = {"Bps": "B/s", "watt": "W", "watth": "Wh", "joule": "J", "short": "", "pps": "p/s", "reqps": "req/s"}
_PLAIN = {"none": "", "percent": "%", "celsius": "°C", "rotmhz": " MHz", "rotrpm": " rpm", "ms": " ms", "h": " h"}
KNOWN = frozenset({*_PREFIXED, *_PLAIN, "percentunit", "s", "bytes", "dateTimeAsIso", "dtdurations", "bool_yes_no"})


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a value as text."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f}%"
    if unit == "dateTimeAsIso":
        return datetime.fromtimestamp(value / 1000, tz=UTC).strftime("%m-%d %H:%M:%S")
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    return _measured(value, unit, decimals)


def _measured(value: float, unit: str, decimals: int | None) -> str:
    if unit in ("s", "dtdurations"):
        return _duration(value, decimals)
    if unit == "bytes":
        return _scaled(value, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi"), decimals) + "B"
    if unit in _PREFIXED:
        return _scaled(value, 1000, _SI, decimals) + _PREFIXED[unit]
    return _rounded(value, decimals) + _PLAIN.get(unit, f" {unit}")


def _rounded(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def _scaled(value: float, base: int, prefixes: tuple[str, ...], decimals: int | None) -> str:
    power = 0
    while abs(value) >= base and power < len(prefixes) - 1:
        value, power = value / base, power + 1
    return f"{_rounded(value, decimals)} {prefixes[power]}"


def _duration(value: float, decimals: int | None) -> str:
    size = abs(value)
    for seconds, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if size >= 2 * seconds:
            return f"{_rounded(value / seconds, 1 if decimals is None else decimals)} {name}"
    return f"{_rounded(value, decimals)} s" if size >= 0.1 or size == 0 else f"{_rounded(1000 * value, decimals)} ms"
