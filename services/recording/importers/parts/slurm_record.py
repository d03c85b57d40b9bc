"""One job of Slurm's accounting: its fields under the names that sacct prints, whichever form they came in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """The fields of a job or a step, as text; a field that is not there is empty."""

    fields: dict[str, str]

    def has(self, name: str) -> bool:
        """Whether the source gives the field at all, empty or not."""
        return name in self.fields

    def text(self, *names: str) -> str:
        """Return the first of the fields that is not empty."""
        return next((self.fields[name].strip() for name in names if self.fields.get(name, "").strip()), "")

    def with_missing_from(self, step: "Record") -> "Record":
        """Return the record with what it leaves empty filled from one of its steps."""
        known = ("NodeList", "AllocTRES", "ExitCode", "FailedNode")
        extra = {name: step.text(name) for name in known if self.has(name) and not self.text(name) and step.text(name)}
        return Record(self.fields | extra) if extra else self


def is_step(job_id: str) -> bool:
    """Whether an id is that of a step: ``123.batch``, ``123_4.0``, ``123+1.extern``."""
    return "." in job_id
