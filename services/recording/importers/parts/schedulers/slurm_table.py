"""Reads tables of `sacct -P` and `sacct -p`, with any delimiter and any fields, and what `scontrol show job` prints.

A job's name may hold the delimiter: sacct quotes nothing. Which cells it was cut into is then seen by the others, whose
forms are known.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from services.recording.importers.parts.schedulers.slurm_record import Record, gpus_of

Line = tuple[int, str]
_FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir")
"""Fields that may hold anything, in the order in which a delimiter is looked for in them."""
_FORMS = {
    "JobID": r"\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.\w+)?", "JobIDRaw": r"\d+(?:\.\w+)?",
    "State": r"[A-Z_]{1,20}(?: by \S+)?", "ExitCode": r"\d+:\d+|", "Submit": r"[-\dT:.+Z]*|Unknown|None",
    "Start": r"[-\dT:.+Z]*|Unknown|None", "End": r"[-\dT:.+Z]*|Unknown|None",
    "NodeList": r"[^|,;\s]+(?:,[^|;\s]+)*|None assigned|", "AllocTRES": r"(?:[\w/:.-]+=[^=,]*(?:,|$))*",
    "User": r"[\w.@$-]*", "Account": r"[\w.@-]*", "Partition": r"[\w,.-]*",
}  # fmt: skip
_KNOWN = {name: re.compile(form) for name, form in _FORMS.items()}
_KEYS = (
    "JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobOffset", "JobName", "UserId", "GroupId", "MCS_label",
    "Priority", "Nice", "Account", "QOS", "WCKey", "JobState", "Reason", "Dependency", "FailedNode", "Requeue",
    "Restarts", "BatchFlag", "Reboot", "ExitCode", "DerivedExitCode", "RunTime", "TimeLimit", "TimeMin", "SubmitTime",
    "EligibleTime", "AccrueTime", "StartTime", "EndTime", "Deadline", "PreemptEligibleTime", "PreemptTime",
    "SuspendTime", "SecsPreSuspend", "LastSchedEval", "Scheduler", "Partition", "AllocNode:Sid", "ReqNodeList",
    "ExcNodeList", "NodeList", "BatchHost", "NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "ReqB:S:C:T", "TRES",
    "ReqTRES", "AllocTRES", "Socks/Node", "NtasksPerN:B:S:C", "CoreSpec", "JOB_GRES", "Nodes", "CPU_IDs", "Mem",
    "GRES", "GRES_IDX", "MinCPUsNode", "MinMemoryNode", "MinTmpDiskNode", "Features", "DelayBoot", "OverSubscribe",
    "Contiguous", "Licenses", "Network", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Power", "TresPerNode",
    "TresPerJob", "TresPerTask", "Comment", "AdminComment", "SystemComment", "MailUser", "MailType", "Switches",
    "Gres", "Shared", "NodeListIndices", "SegmentSize", "SubmitLine",
)  # fmt: skip
_KEY = re.compile(r"(?:^|\s+)(" + "|".join(re.escape(key) for key in sorted(_KEYS, key=len, reverse=True)) + r")=")
_SHOWN = {
    # what scontrol calls a field: what sacct calls it
    "JobName": "JobName", "JobState": "State", "Reason": "Reason", "ExitCode": "ExitCode", "SubmitTime": "Submit",
    "StartTime": "Start", "EndTime": "End", "NodeList": "NodeList", "FailedNode": "FailedNode",
}  # fmt: skip
_NOTHING = {"(null)", "None", "Unknown", "N/A"}


def delimiter_of(header: str) -> str:
    """Return what stands between the names of a header (sacct --delimiter): ``|`` where it is not given."""
    found = re.match(r"[A-Za-z]\w*(?P<between>[^\w\s-]+|\t)[A-Za-z]", header)
    return found["between"] if found is not None else "|"


def row_of(names: Sequence[str], line: str, delimiter: str) -> dict[str, str] | None:
    """Return a line's cells by name; None where no way to join what a delimiter cut apart fits."""
    cells = line.split(delimiter)
    # `sacct -p` ends each line with a further bar, `-P` does not.
    if len(cells) == len(names) + 1 and not cells[-1] and _fits(dict(zip(names, cells[:-1], strict=True))):
        cells.pop()
    if len(cells) == len(names):
        return dict(zip(names, cells, strict=True))
    for several in (cells, cells[:-1]) if not cells[-1] else (cells,):
        more = len(several) - len(names)
        for name in (name for name in _FREE if name in names and more > 0):
            place = names.index(name)
            whole = delimiter.join(several[place : place + more + 1]).replace(f"\\{delimiter}", delimiter)
            row = dict(zip(names, [*several[:place], whole, *several[place + more + 1 :]], strict=True))
            if _fits(row):
                return row
    return None


def _fits(row: dict[str, str]) -> bool:
    return all(form.fullmatch(row[name].strip()) for name, form in _KNOWN.items() if name in row)


def shown_jobs(lines: Iterable[Line]) -> Iterator[tuple[int, Record]]:
    """Yield the jobs of ``scontrol show job``, with ``-d`` their GPUs too, with ``-o`` each in one line."""
    begun, text = 0, ""
    for number, line in lines:
        if re.match(r"\s*JobId=\d", line):
            if text:
                yield begun, _shown(text)
            begun, text = number, line
        elif text:
            text += "\n" + line
    if text:
        yield begun, _shown(text)


def _shown(text: str) -> Record:
    """Return a job's fields under the names that sacct has for them."""
    marks = list(_KEY.finditer(text))
    pairs = [
        (mark[1], text[mark.end() : marks[place + 1].start() if place + 1 < len(marks) else len(text)].strip())
        for place, mark in enumerate(marks)
    ]
    found: dict[str, str] = {}
    parts: dict[str, list[int]] = {}
    hosts = ""
    for key, value in pairs:
        if key == "Nodes":
            hosts = value
        elif key in {"GRES", "GRES_IDX"} and hosts:
            parts |= gpus_of(hosts, [value])
        elif value not in _NOTHING:
            found.setdefault(key, value)
    fields = {name: found.get(key, "") for key, name in _SHOWN.items()}
    fields["User"] = found.get("UserId", "").partition("(")[0]
    fields["JobID"] = found.get("JobId", "")
    if found.get("ArrayTaskId", "").isdecimal():
        fields["JobID"] = f"{found.get('ArrayJobId', '')}_{found['ArrayTaskId']}"
    elif "HetJobOffset" in found:
        fields["JobID"] = f"{found.get('HetJobId', '')}+{found['HetJobOffset']}"
    tres = found.get("AllocTRES") or found.get("TRES")
    if tres is not None:
        fields["AllocTRES"] = tres
    return Record(fields, parts)
