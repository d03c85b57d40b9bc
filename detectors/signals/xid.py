"""The XIDs of NVIDIA's driver: what each means and what to do (data in xid.yaml), and the kernel's lines about them.

What a finding recommends is ours. The sources' recommendations differ for some codes: a finding quotes the first that
agrees with ours, the others stand in its evidence; a site can overrule class and action in a detector's configuration.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

from detectors import yaml_text

XidClass = Literal[
    "uncorrectable_memory", "remap_recorded", "remap_failed", "correctable_memory", "gpu_lost", "nvlink",
    "nvlink_leveled", "pcie", "follow_on", "application", "power", "hardware", "firmware", "link", "information",
]  # fmt: skip
Step = Literal["none", "restart_app", "reset", "reboot", "inspect", "replace"]
"""What to do about a code, in six words."""
SITE, OURS = "site", "hindcast"
"""The sources of what a site's own configuration says, and of what is recommended where no source agrees."""
_SOURCES_WORDS: Mapping[str, Step] = {
    "IGNORE": "none", "RESTART_APP": "restart_app", "CHECK THE APPLICATION": "restart_app", "RESET_GPU": "reset",
    "RESTART_BM": "reboot", "RESTART_VM": "reboot", "REBOOT": "reboot", "CONTACT_SUPPORT": "inspect",
    "CHECK_MECHANICALS": "inspect", "INSPECT": "inspect", "INVESTIGATE": "inspect", "WORKFLOW": "inspect",
}  # fmt: skip
_AGREES: Mapping[Step, frozenset[Step]] = {
    "none": frozenset({"none"}),
    "restart_app": frozenset({"restart_app"}),
    "reset": frozenset({"reset", "reboot", "inspect"}),
    "reboot": frozenset({"reset", "reboot", "inspect"}),
    "inspect": frozenset({"inspect"}),
    "replace": frozenset({"inspect"}),
}
"""By what is recommended, what a source may ask for without contradicting it: a boot resets the GPU, and a workflow or
a call for support may follow."""

GPU_OFF_THE_BUS = 79
_LINE = re.compile(r"NVRM:\s*Xid\s*\((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\):\s*(\d+)\b,?\s*(.*)", re.DOTALL)
# The driver says so without a code, too, in one of several wordings.
_OFF_THE_BUS = re.compile(
    r"NVRM:.*?\b((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)\b.*fallen off the bus"
)
_NON_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_ADDRESS = re.compile(r"^(?:PCI:)?(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})(?:\.([0-9A-Fa-f]))?$")


@dataclass(frozen=True, slots=True)
class Xid:
    """A code: what it means, its class, and what each source recommends."""

    code: int
    meaning: str
    group: XidClass
    actions: Mapping[str, str] = field(default_factory=dict)
    """By source, the one to quote first."""
    ours: Step = "none"
    """What is recommended."""

    @property
    def action(self) -> tuple[str, str]:
        """Return what is recommended, in the words of a source that agrees, and the source; a site's word is ours."""
        for source, action in self.actions.items():
            steps = asked(action)
            if source == SITE or (steps & _AGREES[self.ours] and ("none" in steps) == (self.ours == "none")):
                return action, source
        return self.ours, OURS

    @property
    def quoted(self) -> str:
        """Return the code with a source that agrees with what is recommended, to put in brackets behind it."""
        action, source = self.action
        return f"XID {self.code}" if source == OURS else f"XID {self.code}: {action}, by {source}"

    def evidence(self) -> dict[str, float | int | str]:
        """Return what a finding shows of it: the action with its source, and what the other sources say."""
        action, source = self.action
        others = "; ".join(f"{other}: {advice}" for other, advice in self.actions.items() if other != source)
        evidence: dict[str, float | int | str] = {
            "xid": self.code,
            "xid_meaning": self.meaning,
            "xid_class": self.group,
            "xid_action": action,
            "xid_action_source": source,
            "xid_catalogue": VERSION,
        }
        return evidence | {"xid_other_actions": others} if others else evidence


def _load() -> tuple[str, dict[int, Xid], Mapping[str, Step]]:
    document = yaml_text.load((resources.files("detectors.signals") / "xid.yaml").read_text(encoding="utf-8"))
    known: dict[int, Xid] = {}
    for code, entry in document["xids"].items():
        if entry["class"] not in get_args(XidClass):
            raise ValueError(f"detectors/signals/xid.yaml: {code} has the class {entry['class']}, which is none")
        actions = {source: str(entry[source]) for source in document["order"] if source in entry}
        ours = entry.get("ours", document["ours"][entry["class"]])
        known[int(code)] = Xid(int(code), str(entry["meaning"]), entry["class"], actions, ours)
    return str(document["version"]), known, document["ours"]


def asked(action: str) -> frozenset[Step]:
    """Return what a source's words ask for.

    >>> sorted(asked("RESET_GPU / CONTACT_SUPPORT"))
    ['inspect', 'reset']
    """
    words = action.upper()
    return frozenset(step for word, step in _SOURCES_WORDS.items() if word in words)


VERSION, XIDS, _OF_CLASS = _load()


def _settings(given: Any) -> Any:
    """Take what YAML or JSON may say: nothing, or a mapping whose keys are codes as numbers or as text."""
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        return given
    for code, what in given.items():
        if not str(code).isdigit():
            raise ValueError(f"{code!r} is no XID")
        wrong = sorted(set(what) - {"class", "action"}) if isinstance(what, Mapping) else ["no mapping"]
        if wrong or not what:
            raise ValueError(f"XID {code}: class, action or both are expected, not {', '.join(wrong) or 'nothing'}")
        if what.get("class", "follow_on") not in get_args(XidClass):
            raise ValueError(f"XID {code}: {what['class']!r} is no class; there are {', '.join(get_args(XidClass))}")
    return {str(code): {str(name): str(value) for name, value in what.items()} for code, what in given.items()}


XidOverrides = Annotated[dict[str, dict[str, str]], BeforeValidator(_settings)]
"""A setting: by code, what a site says of its `class` and its `action`, as in ``{63: {class: information}}``."""


class XidCatalogue:
    """The codes as a site sees them."""

    def __init__(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        self._codes = dict(XIDS)
        for text, override in overrides.items():
            code = int(text)
            base = XIDS.get(code, Xid(code, "not in the catalogue", "information"))
            actions = {SITE: override["action"], **base.actions} if "action" in override else base.actions
            group: Any = override.get("class", base.group)
            ours = base.ours if group == base.group else _OF_CLASS[group]
            self._codes[code] = Xid(code, base.meaning, group, actions, ours)

    def codes(self, *groups: XidClass) -> frozenset[int]:
        """Return the codes of some classes."""
        return frozenset(code for code, xid in self._codes.items() if xid.group in groups)

    def of(self, code: int) -> Xid:
        """Return a code; one that is not in the catalogue is information."""
        return self._codes.get(code) or Xid(code, "not in the catalogue", "information")


@dataclass(frozen=True, slots=True)
class XidLine:
    """A kernel line about a GPU: its code, the GPU's address as in a topology, and the driver's words."""

    code: int
    address: str
    text: str


def parse_line(message: str) -> XidLine | None:
    """Return what a kernel line says; None if it is not about an XID.

    >>> parse_line("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    XidLine(code=79, address='00000000:05:00.0', text='GPU has fallen off the bus.')
    >>> parse_line("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.").code
    79
    """
    if "NVRM:" not in message:
        return None
    if (found := _LINE.search(message)) is not None:
        address, code, text = normal_address(found[1]), int(found[2]), _without_process(found[3].strip())
    elif "fallen off the bus" in message and (found := _OFF_THE_BUS.search(message)) is not None:
        address, code, text = normal_address(found[1]), GPU_OFF_THE_BUS, "GPU has fallen off the bus."
    else:
        return None
    return XidLine(code, address, text) if address is not None else None


def is_fatal(text: str) -> bool:
    """Return whether an NVLink 5 XID is fatal by its text; where it doesn't say, it is.

    >>> is_fatal("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)")
    True
    >>> is_fatal("RLW_CTRL Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000)")
    False
    """
    return _NON_FATAL.search(text) is None


def _without_process(text: str) -> str:
    """Return the driver's words without the process and its name, which say who was hit and not what broke."""
    return re.sub(r"^(?:(?:pid|name)=[^,]*,\s*)+", "", text)


def normal_address(address: str) -> str | None:
    """Return a PCI address with eight digits of domain, in lower case, with its function; None if it is none.

    The kernel gives ``PCI:0000:05:00``, a topology ``00000000:05:00.0``; a function that is not given is 0.

    >>> normal_address("PCI:0018:B1:00")
    '00000018:b1:00.0'
    """
    found = _ADDRESS.match(address.strip())
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:08x}:{bus:02x}:{device:02x}.{function:x}"
