"""A pytest plugin (`-p tests.fuzzing`) that has atheris fuzz the one selected test under `tests.mangled.fuzzed`.

In the place of Hypothesis' draws come libFuzzer's: it damages further what reached new code, and so gets deeper with
time. It ends the process: when the time is over, or at the first input that raises, takes too long or too much memory.
`python -m tests.fuzz` gives it what it needs.
"""

import os
import resource
import sys
from pathlib import Path
from random import Random

import atheris
import pytest

_MOST_ADDRESSES = 16 << 30
"""Bytes: a single allocation beyond is refused, before it takes the machine down."""
_INSTRUMENTED = atheris.instrument_imports(include=["services", "detectors"])
_INSTRUMENTED.__enter__()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Fuzz instead of calling the test."""
    from tests.mangled import damaged, kept  # what this imports is instrumented, too

    _INSTRUMENTED.__exit__(None, None, None)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    (mark,) = pyfuncitem.iter_markers("fuzz")
    samples: tuple[bytes, ...] = mark.args
    test = pyfuncitem.obj.hypothesis.inner_test
    corpus = Path(os.environ["HINDCAST_FUZZ_CORPUS"])
    for number, content in enumerate([*samples, *(path.read_bytes() for path in kept(test))]):
        (corpus / f"sample-{number}").write_bytes(content)

    def once(content: bytes) -> None:
        test(content=content, **pyfuncitem.funcargs)

    def mutated(content: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)  # noqa: S311 - for variety
        changed = damaged(content, random, samples) if random.randrange(4) else atheris.Mutate(content, most)
        return bytes(changed[:most])

    options = os.environ["HINDCAST_FUZZ_OPTIONS"].split()
    atheris.Setup([sys.argv[0], str(corpus), *options], once, custom_mutator=mutated)
    atheris.Fuzz()
