"""Training loops that several scenarios share, in files of their own: ``training: {preset: NAME, ...}``.

What stands beside `preset` replaces the file's values, one by one.
"""

from pathlib import Path
from typing import Any

from services.kit.errors import UsageError
from services.kit.shipped import shipped
from services.synth.cluster.profile import load_yaml

SHIPPED = shipped("replay-data") / "profiles" / "training"


def with_presets(content: Any, folder: Path) -> Any:
    """Return a scenario's content with every ``training.preset`` replaced by that file's values.

    Files are looked for in `folder`, then among those that come with the library. UserError: there is no such file, or
    no mapping in it.
    """
    if isinstance(content, list):
        return [with_presets(item, folder) for item in content]
    if not isinstance(content, dict):
        return content
    return {
        key: _filled(value, folder) if key == "training" else with_presets(value, folder)
        for key, value in content.items()
    }


def _filled(training: Any, folder: Path) -> Any:
    if not isinstance(training, dict) or "preset" not in training:
        return training
    name = f"{training['preset']}.yaml"
    path = next((place / name for place in (folder, SHIPPED) if (place / name).exists()), folder / name)
    values = load_yaml(path, "training preset")
    if not isinstance(values, dict):
        raise UsageError(f"{path}: not a mapping of a training's values", remedy="correct the preset")
    return values | {key: value for key, value in training.items() if key != "preset"}
