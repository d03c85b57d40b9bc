"""Which metrics a query names.

A query is read by a tokenizer of PromQL's words: enough to distinguish a metric from a function, a label and a keyword,
as a metric is what stands before ``{`` or alone where no ``(`` and no matcher follows.
"""

import re

_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"{_STRING}|\[[^\]]*\]|\$?[a-zA-Z_:][a-zA-Z0-9_:]*|=~|!~|!=|==|[{{}}(),=]|\S")
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_KEYWORDS = _LABEL_LISTS | {"bool", "offset", "and", "or", "unless", "inf", "nan", "start", "end", "atan2"}
_AGGREGATED_BY = frozenset({"(", "by", "without"})


def named_metrics(query: str) -> set[str]:
    """Return the metric names in a PromQL query."""
    words = _TOKEN.findall(re.sub(r"\d[\d.]*(?:e[+-]?\d+)?(?:ms|[smhdwy])?", "0", _without_strings(query)))
    found: set[str] = set()
    inside_labels = 0
    for previous, word, following in zip(["", *words], words, [*words[1:], ""], strict=False):
        if word == "{" or (word == "(" and previous in _LABEL_LISTS):
            inside_labels += 1
        elif inside_labels and word in "})":
            inside_labels -= 1
        elif inside_labels or following in _AGGREGATED_BY or word.lower() in _KEYWORDS:
            continue
        elif re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", word):
            found.add(word)
    return found


def _without_strings(query: str) -> str:
    return re.sub(_STRING, '""', query)
