"""The report as one HTML file that needs nothing but itself: light, dark and on paper."""

import re
from html import escape

from services.postmortem.document import Block, Code, Document, Figure, Items, Section, Table, Text

_LIGHT = (
    "--paper:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d0d7de;--tint:#f4f6f8;--culprit:#b3261e;--band:#c3d3e8;"
    "--middle:#2f5d9b;--onset:#8a5a00;--found:#b3261e;--over:#1a7037"
)
_DARK = (
    "--paper:#14181d;--ink:#e6eaee;--soft:#a3adb8;--rule:#39424c;--tint:#1d232a;--culprit:#ff8a80;--band:#2b3e57;"
    "--middle:#8fb8ee;--onset:#e3b341;--found:#ff8a80;--over:#6fcf8a"
)
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box }}
body {{ font: 15px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem;
  color: var(--ink); background: var(--paper) }}
h1 {{ font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--rule) }}
p, li {{ max-width: 52rem; overflow-wrap: break-word }}
.lead {{ color: var(--soft) }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(7.4rem, 1fr)); gap: .75rem; margin: 1.2rem 0;
  padding: 0 }}
.facts div {{ background: var(--tint); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .8rem }}
.facts dt {{ color: var(--soft); font-size: .8rem }}
.facts dd {{ margin: 0; font-weight: 600; overflow-wrap: anywhere }}
.scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; margin: .8rem 0; font-size: .9rem; width: 100% }}
th, td {{ padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule) }}
th {{ color: var(--soft); font-weight: 600; vertical-align: bottom }}
th.figure, td.figure {{ text-align: right; font-variant-numeric: tabular-nums }}
td.figure {{ white-space: nowrap }}
td {{ overflow-wrap: break-word }} td.time {{ white-space: nowrap; font-variant-numeric: tabular-nums }}
tr.strong td:not(:last-child) {{ font-weight: 600 }}
code, pre {{ font: .88em/1.45 ui-monospace, monospace; background: var(--tint); border-radius: 3px }}
code {{ padding: .05em .25em; overflow-wrap: break-word }}
pre {{ padding: .7rem .9rem; border: 1px solid var(--rule); white-space: pre-wrap; overflow-wrap: anywhere }}
figure {{ margin: 1.4rem 0 1.8rem }} figcaption {{ margin-bottom: .3rem }}
figcaption b {{ display: block }} figcaption span {{ color: var(--soft); font-size: .88rem }}
figure table {{ margin-top: .2rem }}
.key {{ font-size: .85rem; color: var(--soft) }}
.key i {{ display: inline-block; width: 1.6em; height: .7em; margin: 0 .35em 0 1em; vertical-align: baseline }}
.key i:first-child {{ margin-left: 0 }}
.key .c {{ border-top: 2.5px solid var(--culprit); height: .3em }} .key .b {{ background: var(--band) }}
.key .m {{ border-top: 1.5px solid var(--middle); height: .3em }}
svg {{ width: 100%; height: auto; display: block; font: 11px system-ui, sans-serif }}
svg text {{ fill: var(--soft) }} svg .name {{ fill: var(--ink); font-weight: 600 }}
svg .grid {{ stroke: var(--rule); stroke-width: .7 }} svg .band {{ fill: var(--band); stroke: none }}
svg .middle {{ stroke: var(--middle); stroke-width: 1.2; fill: none }}
svg .culprit {{ stroke: var(--culprit); stroke-width: 1.8; fill: none; stroke-linejoin: round }}
svg .mark {{ stroke-width: 1.2; stroke-dasharray: 4 3 }} svg .onset {{ stroke: var(--onset) }}
svg .found {{ stroke: var(--found) }} svg .over {{ stroke: var(--over) }}
@media (max-width: 40rem) {{
  /* Of when and what, a phone has room for both, but not for how long between. */
  #timeline :is(th, td):is(:nth-child(2), :nth-child(3)) {{ display: none }} #timeline td {{ overflow-wrap: anywhere }}
}}
@media print {{
  :root {{ {_LIGHT} }}
  @page {{ margin: 16mm 14mm }}
  body {{ font-size: 10pt; max-width: none; padding: 0 }} table {{ font-size: 8.5pt }}
  .facts {{ grid-template-columns: repeat(7, 1fr); gap: .4rem; font-size: 9pt }} .facts div {{ padding: .35rem .45rem }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact }}
  h2 {{ break-after: avoid; margin-top: 1.6rem }} figure {{ margin: .9rem 0 1rem }}
  figure, tr, .facts {{ break-inside: avoid }} thead {{ display: table-header-group }}
  .scroll {{ overflow: visible }} p, li {{ orphans: 3; widows: 3; max-width: none }}
}}
"""
_TIME = re.compile(r"\d\d:\d\d:\d\d\.\d{3}")
_KEY = (
    '<p class="key"><i class="c"></i>what is at fault<i class="m"></i>its peers\' median'
    '<i class="b"></i>where nine tenths of its peers are, or what was usual before</p>'
)


def html(document: Document) -> str:
    """Return the file's text."""
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in document.facts)
    body = "".join(_section(section) for section in document.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f'<h1>{escape(document.title)}</h1><p class="lead">{_inline(document.lead)}</p>'
        f'<dl class="facts">{facts}</dl>\n{body}</main></body></html>\n'
    )


def _section(section: Section) -> str:
    key = _KEY if any(isinstance(block, Figure) for block in section.blocks) else ""
    name = escape(section.title.lower().replace(" ", "-"))
    blocks = "".join(map(_block, section.blocks))
    return f'<section id="{name}"><h2>{escape(section.title)}</h2>{key}{blocks}</section>\n'


def _block(block: Block) -> str:
    match block:
        case Text(words):
            return f"<p>{_inline(words)}</p>"
        case Items(entries, numbered):
            tag = "ol" if numbered else "ul"
            return f"<{tag}>{''.join(f'<li>{_inline(entry)}</li>' for entry in entries)}</{tag}>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Table():
            return _table(block)
        case Figure(chart, caption, table):
            head = f"<figcaption><b>{escape(chart.title)}</b><span>{_inline(caption)}</span></figcaption>"
            return f"<figure>{head}{chart.svg()}{_table(table)}</figure>"


def _table(table: Table) -> str:
    def marked(place: int, cell: str = "") -> str:
        kind = "figure" if place in table.figures else "time" if _TIME.fullmatch(cell) else ""
        return f' class="{kind}"' if kind else ""

    head = "".join(f'<th scope="col"{marked(place)}>{escape(name)}</th>' for place, name in enumerate(table.columns))
    rows = "".join(
        f'<tr class="{"strong" if number in table.strong else ""}">'
        f"{''.join(f'<td{marked(place, cell)}>{_inline(cell)}</td>' for place, cell in enumerate(row))}</tr>"
        for number, row in enumerate(table.rows)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
