"""New names for old ones: the same name always gets the same one, in a field or in the middle of a log line.

Names are known (they stand in the topology, the jobs, the streams) or known by their form (addresses, UUIDs, GUIDs,
serial numbers, paths, mail addresses). New ones have the form of the old, so that whatever parses a line still does.
Without the salt they cannot be computed from the old ones.
"""

import hashlib
import hmac
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address

# What a new name begins with, by what it names.
_PREFIXES = {
    "node": "n",
    "switch": "s",
    "rack": "r",
    "pod": "p",
    "feed": "f",
    "user": "u",
    "job name": "job",
    "job": "j",
    "cluster": "cluster",
    "mount": "/fs",
    "domain": "site",
    "recording": "recording",
}
_SALTED_DIGITS = 12
"""With a given salt, a number this long comes from the name alone; two of 10,000 names meet once in 20,000 times."""
# Names that say nothing of anybody.
_COMMON = frozenset({"", "root", "nobody", "slurm", "imported", "unknown", "none", "null", "localhost", "node"})
# Words of log lines, which parsers look for: a user may be called so, and the line must still be read.
_WORDS = """
    kernel error warning info critical failed failure gpu gpus node nodes link links job jobs power thermal memory nvrm
    xid pci pid name iteration loss step steps train validation checkpoint time rank ranks state down up port switch
    fan psu sensor temperature asserted deasserted slurm slurmd slurmctld slurmstepd sacct srun cancelled completed
    timeout fatal nvlink nvswitch ecc row remap bus fallen off the has and for with not was are cuda nccl test user
    default model mlx5 main batch run data gpt llm bert llama nvidia amd intel ib eth dimm cpu system
"""
_VOCABULARY = frozenset(_WORDS.split())
_SHORTEST = 3
"""Shorter names, and those that are only digits, would be found everywhere in a line: they are replaced in fields."""

_PARTS = re.compile(r"[^\W_]+|.", re.DOTALL)
_HEX = "[0-9A-Fa-f]"
_FORMS: dict[str, str] = {
    "url": r"\b[a-z]{2,8}://[^\s\"'<>|]{1,500}",
    "mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}",
    "uuid": rf"(?<![0-9A-Za-z]){_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?![0-9A-Za-z])",
    # six octets, or the eight of an InfiniBand port
    "mac": (
        rf"(?<![\w:-]){_HEX}{{2}}(?P<sep>[:-]){_HEX}{{2}}(?:(?P=sep){_HEX}{{2}}){{4}}"
        rf"(?:(?:(?P=sep){_HEX}{{2}}){{2}})?(?![\w:-])"
    ),
    # sixteen digits that are not a plain decimal number
    "guid": (
        rf"(?<![\w:])(?:0x{_HEX}{{16}}|(?=\d{{0,15}}[A-Fa-f]){_HEX}{{16}}|{_HEX}{{4}}(?::{_HEX}{{4}}){{3}})(?![\w:])"
    ),
    "ipv6": r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:.])",
    "ipv4": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)",
    "serial": (
        r"(?P<word>(?i:\b(?:serial(?:[ _-]?(?:number|num|no\.?))?|s/n|sn|service[ _-]tag|asset[ _-]tag))\b[\"']?\s{0,3}"
        r"[:=#]?\s{0,3}[\"']?)(?P<serial>(?=[A-Za-z-]{0,30}\d)[A-Za-z0-9-]{5,40})(?![\w-])"
    ),
    "uid": r"(?P<by>(?i:\buid[ =:(]{1,3}|\bCANCELLED by |\bgid[ =:(]{1,3}))(?P<number>\d{3,10})(?!\w)",
    "path": r"(?<![\w/.)])\.{0,2}/(?:[\w.+@~%-]{1,255}/){0,40}[\w.+@~%-]{1,255}",
    "domain": (
        r"(?<![\w.-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61})\.){1,8}"
        r"(?:com|org|net|edu|gov|mil|io|ai|local|internal|intra|lan|cluster|int|cloud|de|fr|jp|uk|ch|cn|eu)(?![\w-]|\.\w)"
    ),
}
_ANY_FORM = re.compile("|".join(f"(?P<{kind}_>{form})" for kind, form in _FORMS.items()))
_SYSTEM_ROOTS = frozenset({"usr", "lib", "lib64", "bin", "sbin", "dev", "proc", "sys", "run", "etc", "boot"})
_KEPT_PARTS = frozenset(
    {"home", "var", "log", "tmp", "opt", "mnt", "scratch", "data", "users", "checkpoints", "..", "."}
)


class Pseudonyms:
    """The new names of one recording. Names are collected first (`know`), settled once, and then asked for.

    ``compact`` numbers them 1, 2, 3 in an order that the salt decides; otherwise a name's number comes from the salt
    and the name alone, so that several recordings with one salt fit together.
    """

    def __init__(self, salt: bytes, *, compact: bool) -> None:
        self._salt, self._compact = salt, compact
        self._kinds: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._parts: dict[tuple[str, ...], str] = {}
        """New names by the parts of the old ones, in lower case."""
        self._lengths: dict[str, list[int]] = {}
        """How many parts the names have that begin with a part, the longest first."""
        self._addresses: dict[str, str] = {}
        self._taken: set[str] = set()
        self.renamed: Counter[str] = Counter()
        self.only_in_fields: list[str] = []
        """Names that are too short or too common to look for inside messages."""
        self._shaped = lru_cache(100_000)(self._shape)

    def know(self, kind: str, names: Iterable[str | None]) -> None:
        """Note names of a kind; one that is known already keeps its first kind."""
        for name in names:
            if name is not None and name.lower() not in _COMMON:
                self._kinds.setdefault(name, kind)
                if kind in {"node", "switch"} and re.fullmatch(r"[A-Za-z][\w-]*(\.[A-Za-z0-9-]+){2,}", name):
                    host, _, domain = name.partition(".")
                    self._kinds.setdefault(host, kind)
                    self._kinds.setdefault(domain, "domain")

    def settle(self) -> None:
        """Give every known name its new one."""
        originals = {name.lower() for name in self._kinds}
        by_kind: dict[str, list[str]] = {}
        for name, kind in self._kinds.items():
            by_kind.setdefault(kind, []).append(name)
        for kind, names in sorted(by_kind.items()):
            ordered = sorted(names, key=lambda name: self._digest(kind, name))
            width = max(3, len(str(len(names))))
            number = 0
            for name in ordered:
                new = ""
                while not new or new.lower() in originals or new.lower() in self._taken:
                    number += 1
                    new = self._fresh(kind, name, number, width)
                self._new[name] = new
                self._taken.add(new.lower())
            self.renamed[kind] += len(names)
        for name in sorted(self._kinds):
            host, _, domain = name.partition(".")
            if host in self._new and domain in self._new:
                self._new[name] = f"{self._new[host]}.{self._new[domain]}"
        for name, new in self._new.items():
            if len(name) < _SHORTEST or name.isdecimal() or name.lower() in _VOCABULARY:
                self.only_in_fields.append(name)
                continue
            parts = tuple(_PARTS.findall(name.lower()))
            self._parts.setdefault(parts, new)
            lengths = {len(parts), *self._lengths.get(parts[0], ())}
            self._lengths[parts[0]] = sorted(lengths, reverse=True)

    def name(self, text: str) -> str:
        """Return what stands in a field instead of a name."""
        return self._new.get(text) or self.text(text)

    def text(self, text: str) -> str:
        """Return a text with every name in it replaced."""
        pieces, done = [], 0
        for match in _ANY_FORM.finditer(text):
            new = self._formed(_kind_of(match), match)
            if new is not None:
                pieces += [self._named(text[done : match.start()]), new]
                done = match.end()
        pieces.append(self._named(text[done:]))
        return "".join(pieces)

    # -- known names ---------------------------------------------------------------------------------------------

    def _fresh(self, kind: str, name: str, number: int, width: int) -> str:
        if kind == "uuid":
            body = hashlib.sha256(self._digest(f"uuid {number}", name)).hexdigest()
            prefix = "GPU-" if name.upper().startswith("GPU-") else ""
            return f"{prefix}{body[:8]}-{body[8:12]}-{body[12:16]}-{body[16:20]}-{body[20:32]}"
        if kind == "serial":
            return self._shape("serial", name if number == 1 else f"{name}{number}")[: len(name)]
        prefix = _PREFIXES[kind]
        joint = "-" if len(prefix) > 3 and prefix[0] != "/" else ""
        if self._compact:
            return f"{prefix}{joint}{number:0{width}d}"
        value = int.from_bytes(self._digest(kind if number == 1 else f"{kind} {number}", name)[:16], "big")
        return f"{prefix}{joint}{value % 10**_SALTED_DIGITS:0{_SALTED_DIGITS}d}"

    def _named(self, text: str) -> str:
        """Replace known names where they stand between letters and digits of no other word, the longest first."""
        parts = _PARTS.findall(text)
        lowered = [part.lower() for part in parts]
        if self._lengths.keys().isdisjoint(lowered):
            return text
        pieces: list[str] = []
        place = 0
        while place < len(parts):
            for length in self._lengths.get(lowered[place], ()):
                new = self._parts.get(tuple(lowered[place : place + length]))
                if new is not None:
                    pieces.append(self._new.get("".join(parts[place : place + length]), new))
                    place += length
                    break
            else:
                pieces.append(parts[place])
                place += 1
        return "".join(pieces)

    # -- names known by their form --------------------------------------------------------------------------------

    def _formed(self, kind: str, match: re.Match[str]) -> str | None:
        """Return what stands instead of something of that form; None where it is none after all."""
        old = match[0]
        if old in self._new:
            return self._new[old]
        form: dict[str, Callable[[], str | None]] = {
            "url": lambda: f"{old.partition(':')[0]}://host-{self._short('url', old)}.invalid/",
            "serial": lambda: match["word"] + self._number("serial", match["serial"]),
            "uid": lambda: match["by"] + self._number("uid", match["number"]),
            "path": lambda: self._path(old),
            "mail": lambda: self._mail(old),
            "domain": lambda: self._domain(old),
            "ipv4": lambda: self._address(old),
            "ipv6": lambda: self._address(old),
            "guid": lambda: self._guid(old),
        }
        return form[kind]() if kind in form else self._shaped(kind, old)

    def _number(self, kind: str, old: str) -> str:
        return self._new.get(old) or self._shaped(kind, old)

    def _mail(self, old: str) -> str:
        user, _, domain = old.partition("@")
        return f"{self._new.get(user) or 'u' + self._short('mail', user)}@{self._domain(domain)}"

    def _guid(self, old: str) -> str | None:
        """Return another GUID; None for a small number that was written long, which has no maker's part."""
        return self._shaped("guid", old) if int(old.removeprefix("0x").replace(":", ""), 16) >> 40 else None

    def _path(self, old: str) -> str | None:
        """Return a path of the same depth; a known mount at its beginning keeps the name that it has elsewhere."""
        parts = old.split("/")
        for count in range(len(parts), 1, -1):
            head = "/".join(parts[:count])
            if head in self._new:
                return "/".join([self._new[head], *map(self._part, parts[count:])])
        if parts[1] in _SYSTEM_ROOTS or len(parts) < 3:
            return None
        return "/".join([parts[0], *map(self._part, parts[1:])])

    def _part(self, part: str) -> str:
        if part in self._new:
            return self._new[part]
        if part in _KEPT_PARTS or part.isdecimal() or not part:
            return part
        stem, dot, ending = part.rpartition(".")
        known = stem and 0 < len(ending) < 5 and ending.isalpha()
        named = self._named(stem if known else part)
        return ("p" + self._short("path", named)) + (dot + ending if known else "")

    def _domain(self, old: str) -> str:
        host, _, rest = old.partition(".")
        if host in self._new:
            return f"{self._new[host]}.{self._domain(rest)}" if rest else self._new[host]
        return self._new.get(old) or f"host-{self._short('domain', old.lower())}.invalid"

    def _address(self, old: str) -> str | None:
        try:
            address = ip_address(old)
        except ValueError:
            return None
        if address.is_loopback or address.is_unspecified:
            return old
        if old not in self._addresses:
            attempt = 0
            while True:
                digest = self._digest(f"address {attempt}", str(address))
                if address.version == 4:
                    new = f"10.{digest[0]}.{digest[1]}.{digest[2]}"
                else:
                    new = "fd00:" + ":".join(f"{digest[n]:02x}{digest[n + 1]:02x}" for n in range(0, 14, 2))
                if new not in self._taken and new != old:
                    break
                attempt += 1
            self._taken.add(new)
            self._addresses[old] = new
        return self._addresses[old]

    def _shape(self, kind: str, old: str) -> str:
        """Return other digits and letters in the places of the old ones; hexadecimal stays hexadecimal."""
        stream = iter(self._stream(kind, old.lower()))
        hexadecimal = kind in {"uuid", "mac", "guid"}
        prefix = "0x" if kind == "guid" and old.startswith("0x") else ""
        new = []
        for character in old.removeprefix(prefix):
            if character.isdigit() and not hexadecimal:
                new.append(string.digits[next(stream) % 10])
            elif character.isalnum():
                letters = "0123456789abcdef" if hexadecimal else string.ascii_lowercase
                letter = letters[next(stream) % len(letters)]
                new.append(letter.upper() if old.isupper() or (character.isupper() and not hexadecimal) else letter)
            else:
                new.append(character)
        return prefix + "".join(new)

    def _short(self, kind: str, old: str) -> str:
        return self._digest(kind, old).hex()[:10]

    def _stream(self, kind: str, old: str) -> Iterable[int]:
        number = 0
        while True:
            yield from self._digest(f"{kind} {number}", old)
            number += 1

    def _digest(self, kind: str, name: str) -> bytes:
        return hmac.digest(self._salt, f"{kind}\0{name}".encode(errors="surrogatepass"), "sha256")


def _kind_of(match: re.Match[str]) -> str:
    """Return the form that matched: the group around it, not one inside."""
    return next(kind for kind in _FORMS if match[f"{kind}_"] is not None)
