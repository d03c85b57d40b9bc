"""What became of each of the suite's tests, and whether that is what was expected."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

RECEIVER = "gateway"
"""The name under which the suite knows the gateway: what it asks of it is a test of that name below another."""
_OUTCOME = re.compile(rf"^\s*--- (PASS|FAIL|SKIP): (\S+)/{RECEIVER} \(", re.MULTILINE)
_OUTPUT = re.compile(rf"^=== RUN   (\S+)/{RECEIVER}\n((?:(?!=== RUN |\s*--- ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each test (PASS, FAIL, SKIP), and the output of those that did not pass."""

    of: Mapping[str, str]
    output: Mapping[str, str]

    @property
    def passed(self) -> int:
        """Return how many passed."""
        return sum(outcome == "PASS" for outcome in self.of.values())

    def unexpected(self, failures: Mapping[str, str]) -> list[str]:
        """Return a line for each test that failed and is not among `failures`, or is among them and did not fail."""
        failed = {name for name, outcome in self.of.items() if outcome != "PASS"}
        lines = [f"{name}: {self.of[name]}\n{self.output.get(name, '')}" for name in sorted(failed - failures.keys())]
        for name in sorted(failures.keys() - failed):
            passes = "it passes now" if name in self.of else "there is no such test"
            lines.append(f"{name}: {passes}; take it off the list: {failures[name]}")
        return lines


def read(printed: str) -> Outcomes:
    """Return the outcomes from what a Go test program prints with -test.v."""
    of = {name: outcome for outcome, name in _OUTCOME.findall(printed)}
    return Outcomes(of, {name: text for name, text in _OUTPUT.findall(printed) if of.get(name) != "PASS"})
