"""`hindcast dashboards`: what it says where it cannot draw."""

import pytest

from services.cli.conftest import hindcast
from services.dashboards.catalogue import NAMES
from services.kit.errors import UserError


def run(*arguments: str) -> str:
    result = hindcast("dashboards", *arguments, catch=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_all_are_listed() -> None:
    listed = [line.split()[0] for line in run("list").splitlines() if line and not line.startswith(" ")]
    assert listed == ["name", *NAMES]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flet"], "no dashboard flet"),
        (["fleet", "--var", "node"], "not NAME=VALUE"),
        (["fleet", "--from", "2024-04-01T10:00:00Z", "--to", "2024-04-01T09:00:00Z"], "not before"),
        (["fleet", "--from", "yesterday"], "is not an RFC 3339 time"),
        (["fleet", "--url", "http://127.0.0.1:9"], "nothing answers"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_remedy(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        run("render", *arguments)
    assert refused.value.remedy
