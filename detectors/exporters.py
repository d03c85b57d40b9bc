"""What the usual exporters give, and how they are made to give more: exporters.yaml."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from detectors import yaml_text


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CsvField(_Part):
    """A field that dcgm-exporter reports where it stands in its CSV; `default`: as it comes."""

    type: Literal["gauge", "counter"]
    words: str
    help: str = ""
    default: bool = False


class Source(_Part):
    """What gives evidence that is no DCGM field."""

    words: str
    from_: str = Field(alias="from")


class Exporters(_Part):
    """exporters.yaml."""

    dcgm: Mapping[str, CsvField]
    others: Mapping[str, Source]
    amd: Mapping[str, str]
    """By DCGM field the field of AMD's device-metrics-exporter that means the same."""

    @property
    def dcgm_default(self) -> frozenset[str]:
        """Fields that dcgm-exporter reports as it comes."""
        return frozenset(name for name, field in self.dcgm.items() if field.default)

    def words(self, need: str) -> str:
        """Return what a ladder needs (``kind.FIELD``, ``logs.SOURCE``, ...) in words."""
        kind, _, field = need.partition(".")
        if kind == "dcgm" and field in self.dcgm:
            return self.dcgm[field].words
        if need in self.others:
            return self.others[need].words
        return field if kind in {"logs", "topology"} or not field else f"{self.words(kind)} ({field})"

    def source(self, need: str, *, amd: bool = False) -> str:
        """Return what gives it; of a DCGM field the exporter, for AMD's GPUs theirs."""
        kind, _, field = need.partition(".")
        if amd and field.startswith("DCGM_"):
            given = self.amd.get(field)
            return f"device-metrics-exporter: {given}" if given else "nothing: no reading of AMD's GPUs means the same"
        known = self.others.get(need) or self.others.get(kind)
        return known.from_ if known is not None else need

    def csv(self, needs: Iterable[str]) -> list[str]:
        """Return lines for dcgm-exporter's CSV, so that it reports those of `needs` that are DCGM fields."""
        fields = dict.fromkeys(need.removeprefix("dcgm.") for need in needs if need.startswith("dcgm."))
        known = {name: self.dcgm.get(name) or CsvField(type="gauge", words=name) for name in fields if name}
        return [
            f"{name}, {one.type}, {one.help or f'{one.words[:1].upper()}{one.words[1:]}.'}"
            for name, one in known.items()
        ]


@cache
def exporters() -> Exporters:
    """Return exporters.yaml."""
    text = (resources.files("detectors") / "exporters.yaml").read_text(encoding="utf-8")
    return Exporters.model_validate(yaml_text.load(text))
