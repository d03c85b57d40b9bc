"""The report as Markdown: the same words and figures, its charts as characters."""

from collections.abc import Iterator

from services.postmortem.document import Block, Code, Document, Figure, Items, Table, Text


def markdown(document: Document) -> str:
    """Return the file's text."""
    return "\n\n".join(_parts(document)) + "\n"


def _parts(document: Document) -> Iterator[str]:
    yield f"# {_plain(document.title)}"
    yield _plain(document.lead)
    yield "\n".join(f"- {name}: **{_plain(value)}**" for name, value in document.facts)
    for section in document.sections:
        yield f"## {section.title}"
        for block in section.blocks:
            yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text(words):
            yield _plain(words)
        case Items(entries, numbered):
            yield "\n".join(
                f"{f'{place}.' if numbered else '-'} {_plain(entry)}" for place, entry in enumerate(entries, start=1)
            )
        case Code(text):
            yield f"```\n{text}\n```"
        case Table():
            yield _table(block)
        case Figure(chart, caption, table):
            yield f"### {_plain(chart.title)}"
            yield _plain(caption)
            if drawn := chart.characters():
                yield f"```\n{drawn}\n```"
            yield _table(table)


def _table(table: Table) -> str:
    rules = ["--:" if place in table.figures else "---" for place in range(len(table.columns))]
    lines = [table.columns, rules] + [
        [
            f"**{_cell(cell)}**" if number in table.strong and cell and place < len(row) - 1 else _cell(cell)
            for place, cell in enumerate(row)
        ]
        for number, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")
