"""A dashboard from its sections: places on the grid, variables, links to the others, findings as annotations."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.dashboards import colours
from services.dashboards.model import (
    Annotation,
    Annotations,
    Current,
    Dashboard,
    DashboardLink,
    GridPos,
    Panel,
    QueryPanel,
    Row,
    Templating,
    Variable,
    VariableQuery,
)
from services.dashboards.select import ACTIVE, SCOPE, STARTED, last, of

TAG = "hindcast"
COLUMNS = 24
# Order of reading: each leads to the next.
TITLES = {
    "fleet": "Fleet",
    "incident": "Incident",
    "node": "Node and GPU",
    "job": "Job",
    "fabric": "Fabric",
    "power": "Power and cooling",
    "replay": "Replay",
    "pipeline": "Pipeline",
    "executive": "Executive",
}


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, from left to right."""

    title: str
    panels: Sequence[QueryPanel]


def build(name: str, description: str, variables: Sequence[Variable], *sections: Section) -> Dashboard:
    """Return the dashboard `name` of `TITLES`."""
    names = {variable.name for variable in variables}
    return Dashboard(
        uid=f"hindcast-{name}",
        title=TITLES[name],
        description=description,
        tags=(TAG,),
        panels=_laid_out(sections),
        templating=Templating(list=tuple(variables)),
        annotations=Annotations(list=_annotations(names)),
        links=_links(name),
    )


def _laid_out(sections: Sequence[Section]) -> tuple[Panel, ...]:
    placed: list[Panel] = []
    y = 0
    for section in sections:
        placed.append(Row(id=len(placed) + 1, title=section.title, grid_pos=GridPos(h=1, w=COLUMNS, x=0, y=y)))
        y += 1
        x = height = 0
        for panel in section.panels:
            width = panel.grid_pos.w
            if x + width > COLUMNS:
                x, y, height = 0, y + height, 0
            place = GridPos(h=panel.grid_pos.h, w=width, x=x, y=y)
            placed.append(panel.model_copy(update={"id": len(placed) + 1, "grid_pos": place}))
            x, height = x + width, max(height, place.h)
        y += height
    return tuple(placed)


def _links(name: str) -> tuple[DashboardLink, ...]:
    order = list(TITLES)
    following = order[(order.index(name) + 1) % len(order)]
    return (
        DashboardLink(title="hindcast", type="dashboards", tags=(TAG,), as_dropdown=True),
        DashboardLink(title=f"Next: {TITLES[following]}", type="link", url=f"/d/hindcast-{following}"),
    )


def _annotations(variables: set[str]) -> tuple[Annotation, ...]:
    """Return what is marked over all panels: findings from onset and while they are open, and alerts by rules."""
    if "replay" not in variables:
        return ()
    # One node's dashboards show what was found of it, and of what is on no node.
    mine = ('node=~"$node|"',) if "node" in variables else ()
    return (
        Annotation(
            name="Onset",
            expr=f"1000 * max by (cluster, replay, fault, node, severity) ({of(STARTED, *mine)})",
            title_format="{{fault}} {{node}}: onset",
            text_format="where the detector puts the beginning of the fault",
            icon_color=colours.PURPLE,
            use_value_for_time=True,
        ),
        Annotation(
            name="Findings",
            expr=f"max by (cluster, replay, fault, node, severity) ({last(ACTIVE, *mine)}) == 1",
            title_format="{{fault}} {{node}}: {{severity}}",
            text_format="open: from when a detector said so until it was resolved",
            icon_color=colours.RED,
        ),
        Annotation(
            name="Alerts by rules",
            expr=f'ALERTS{{alertstate="firing",{",".join((SCOPE, *mine))}}}',
            title_format="{{alertname}} {{node}}: {{severity}}",
            text_format="firing, as Prometheus evaluated its rules",
            icon_color=colours.ORANGE,
        ),
    )


ANY = Current(text="All", value="$__all")


def _variable(
    name: str, label: str, description: str, query: str, *, regex: str = "", first: bool = False, hidden: bool = False
) -> Variable:
    kind = 3 if query.startswith("query_result(") else 1
    return Variable(
        name=name,
        label=label,
        description=description,
        definition=query,
        query=VariableQuery(qry_type=kind, query=query),
        regex=regex,
        include_all=not first,
        all_value=None if first or hidden else ".*",
        multi=name in ("node", "rack", "peers") and not first,
        hide=2 if hidden else 0,
        current=None if first else ANY,
    )


_RANGE = "[$__range]"
_NODE_REGEX = "/^([^:]+)/"

CLUSTER = _variable("cluster", "Cluster", "What `cluster` says of the targets.", "label_values(up, cluster)")
REPLAY = _variable(
    "replay",
    "Replay",
    "One replay of a recording, or live; series that hindcast has not written have none, and are in All.",
    'label_values(up{cluster=~"$cluster"}, replay)',
)
RACK = _variable(
    "rack",
    "Rack",
    "Racks that GPUs or sensors are labelled with; series without a rack are in All.",
    f"label_values(DCGM_FI_DEV_GPU_TEMP{{{SCOPE}}}, rack)",
)
NODES = _variable(
    "node",
    "Node",
    "Hosts of dcgm-exporter.",
    f'label_values(DCGM_FI_DEV_GPU_TEMP{{{SCOPE},rack=~"$rack"}}, instance)',
    regex=_NODE_REGEX,
)
ONE_NODE = _variable(
    "node",
    "Node",
    "The node that is looked at.",
    f"label_values(DCGM_FI_DEV_GPU_TEMP{{{SCOPE}}}, instance)",
    regex=_NODE_REGEX,
    first=True,
)
_JOBS = (
    f"query_result(count by (job_id) (last_over_time(hindcast_job_iteration{{{SCOPE}}}{_RANGE})) or "
    f'count by (hpc_job) (last_over_time(DCGM_FI_DEV_GPU_UTIL{{{SCOPE},hpc_job!=""}}{_RANGE})))'
)
_JOB_SAYS = "Jobs that report their steps, or that dcgm-exporter's HPC mapping names."
JOB = _variable("job", "Job", _JOB_SAYS, _JOBS, regex='/(?:job_id|hpc_job)="([^"]+)"/')
ONE_JOB = _variable("job", "Job", _JOB_SAYS, _JOBS, regex='/(?:job_id|hpc_job)="([^"]+)"/', first=True)
PEERS = _variable(
    "peers",
    "Peers",
    "The nodes of the chosen job; with All jobs, every node.",
    f'query_result(count by (node) (last_over_time(hindcast_job_iteration{{{SCOPE},job_id=~"$job"}}{_RANGE})) or '
    f'count by (instance) (last_over_time(DCGM_FI_DEV_GPU_UTIL{{{SCOPE},hpc_job=~"$job"}}{_RANGE})))',
    regex='/(?:node|instance)="([^":]+)/',
    hidden=True,
)
SWITCH = _variable(
    "switch",
    "Switch",
    "Switches of sonic-exporter.",
    f"label_values(sonic_interface_operational_status{{{SCOPE}}}, switch)",
)
