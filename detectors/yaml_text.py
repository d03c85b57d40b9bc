"""YAML that comes with hindcast: every process reads it as it starts, by libyaml in a tenth of the time."""

from typing import Any

import yaml

# PyYAML is installed without libyaml where it was built without it.
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> Any:
    """Return what the text says. Raises yaml.YAMLError.

    Not for files of a user's: libyaml has no limit to how deep they nest, but the stack of the process.
    """
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - either is a safe one
