import io

from rich.console import Console

from services.stack.progress import Board


def _board(*names: str, terminal: bool) -> tuple[Board, io.StringIO]:
    text = io.StringIO()
    return Board("building", names, console=Console(file=text, force_terminal=terminal, width=100)), text


def test_without_a_terminal_there_is_a_line_per_change() -> None:
    board, text = _board("kafka", "thanos", terminal=False)
    with board:
        board.update("kafka", "fetching", "4.4.0")
        board.update("kafka", "fetching", "4.4.0")
        board.update("kafka", "done", "4.4.0")
    first, second = text.getvalue().splitlines()
    assert first.startswith("building: kafka fetching after 0.0 s 4.4.0")
    assert second.startswith("building: kafka done after")


def test_on_a_terminal_there_is_a_line_per_name() -> None:
    board, text = _board("kafka", "thanos", terminal=True)
    with board:
        board.update("kafka", "building", "[link]")
    last = text.getvalue().rpartition("kafka")[2]
    assert "building" in last
    assert "[link]" in last
    assert "thanos" in last
    assert "waiting" in last
