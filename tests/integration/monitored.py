"""The Prometheus that watches hindcast, in a hurry."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from services.kit.wait import until
from services.stack.runner import Stack
from tests import web

_RELOADED = "prometheus_config_last_reload_success_timestamp_seconds"


@contextmanager
def hurried(stack: Stack, *rules: Path) -> Iterator[None]:
    """Have the monitor look and evaluate every second, `rules` in place of its own where there are such."""
    config = stack.state_dir / "config" / "monitor.yml"
    before = config.read_text(encoding="utf-8")
    hurrying = yaml.safe_load(before)
    hurrying["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    if rules:
        hurrying["rule_files"] = [str(path) for path in rules]
    config.write_text(yaml.safe_dump(hurrying), encoding="utf-8")
    _reload(stack)
    yield
    config.write_text(before, encoding="utf-8")
    _reload(stack)


def _reload(stack: Stack) -> None:
    """Have it read its configuration again, by a signal: it takes no such request."""

    def last() -> float:
        return value_of(web.get(f"{stack.addresses.monitor}/metrics", timeout=300).text, _RELOADED)

    before, pid = last(), stack.process("prometheus-monitor").pid
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
    until(lambda: last() > before, what="the monitor to read its configuration")


def value_of(text: str, name: str) -> float:
    """Return the value of a series without labels on a page of metrics."""
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))
