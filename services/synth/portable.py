"""Makes a recording in a process of its own, in which NumPy uses no AVX-512: the same bytes on every x86-64 machine.

NumPy's `exp`, `log` and `power` differ in the last bit between machines with AVX-512 and without, as each uses the
widest instructions it finds (NumPy's "CPU dispatch"); a step that ends a millisecond later is another recording. What
may be used can be set only before NumPy is loaded, and so by a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from services.kit.errors import UserError
from services.synth.make import AS_WRITTEN, Progress, Variant

_WITHOUT = "X86_V4 AVX512_ICL AVX512_SPR"
"""NumPy's names for what goes beyond AVX2; a machine that has none of them does not mind."""


def make_portably(
    scenario_path: Path,
    out: Path,
    variant: Variant = AS_WRITTEN,
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> Path:
    """Make the recording of a scenario file in ``out`` and return ``out``: as `make_recording`, and errors as there."""
    order = {
        "scenario": str(scenario_path),
        "out": str(out),
        "name": name,
        "variant": {**vars(variant), "profile": None if variant.profile is None else str(variant.profile)},
    }
    command = [sys.executable, "-m", "services.synth", json.dumps(order)]
    env = os.environ | {"NPY_DISABLE_CPU_FEATURES": _WITHOUT}
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - ourselves
        command,
        stdin=pipe,  # it reads nothing from it, but ends where it does, and so where we end
        stdout=pipe,
        text=True,
        env=env,
        start_new_session=True,  # a terminal's Ctrl-C is for us alone
    ) as child:
        assert child.stdout is not None  # noqa: S101 - asked for above
        refused = None
        for line in child.stdout:
            answer = json.loads(line)
            if isinstance(answer, dict):
                refused = UserError(answer["message"], remedy=answer["remedy"], exit_code=answer["exit_code"])
            elif progress is not None:
                progress(answer)
    if refused is not None:
        raise refused
    if child.returncode:
        raise RuntimeError(f"the generator ended with exit code {child.returncode}")
    return out
