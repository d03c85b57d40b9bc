"""A dashboard from its sections: places on the grid, variables, links to the others, findings as annotations."""

from collections.abc import Sequence

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
from services.dashboards.select import ACTIVE, NO_INCIDENT, NODE, SCOPE, STARTED, incidents, last, node, of, of_incident

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


class Section:
    """A heading and what stands below it, from left to right."""

    def __init__(self, title: str, *panels: QueryPanel) -> None:
        self.title, self.panels = title, panels


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
            text_format="open: from its detection until it was resolved",
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
    name: str,
    label: str,
    description: str,
    query: str,
    *,
    regex: str = "",
    first: bool = False,
    hidden: bool = False,
    in_order: bool = False,
    all_is_listed: bool = False,
) -> Variable:
    """Return a variable; `first`: of one value, at first the first; `in_order`: of the query, not of the alphabet.

    All is any value, or with `all_is_listed` those of the list.
    """
    kind = 3 if query.startswith("query_result(") else 1
    return Variable(
        name=name,
        label=label,
        description=description,
        definition=query,
        query=VariableQuery(qry_type=kind, query=query),
        regex=regex,
        include_all=not first,
        all_value=None if first or hidden or all_is_listed else ".*",
        multi=name in ("node", "rack", "peers") and not first,
        sort=0 if in_order else 1,
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
ONE_JOB = _variable(
    "job",
    "Job",
    "Jobs that report their steps, or that dcgm-exporter's HPC mapping names.",
    _JOBS,
    regex='/(?:job_id|hpc_job)="([^"]+)"/',
    first=True,
)
INCIDENT = _variable(
    "incident",
    "Incident",
    "What detectors found in the time range, the newest first, or where none run what rules fired on. The node "
    f"follows; {NO_INCIDENT} lets you choose any.",
    f"query_result(sort_desc(max by (incident) ({incidents()}) or "
    f'label_replace(vector(0), "incident", "{NO_INCIDENT}", "", "")))',
    regex='/incident="([^"]+)"/',
    first=True,
    in_order=True,
)
_ON_A_NODE, _OF_A_JOB = of_incident('node!=""'), of_incident('node=""', 'job_id!=""')
_ON_EITHER = of_incident('switch=""', 'mount=""')
_ITS_JOBS_RANKS = f"last_over_time(hindcast_job_iteration{{{SCOPE}}}{_RANGE}) and on (job_id) ({_OF_A_JOB})"
_ANY_NODE = f"count by (node) ({node(last('DCGM_FI_DEV_GPU_TEMP'))})"
NODE_OF_INCIDENT = _variable(
    "node",
    "Node",
    "The node that is looked at: the incident's, or one of its job; with an incident of neither, any.",
    f"query_result(count by (node) ({_ON_A_NODE}) or count by (node) ({_ITS_JOBS_RANKS}) or "
    f"({_ANY_NODE} unless on () ({_ON_EITHER})))",
    regex='/node="([^"]+)"/',
    first=True,
)
JOBS_OF_NODE = _variable(
    "job",
    "Job",
    "Jobs that ran on the node in the time range: their nodes are its peers.",
    f"query_result(count by (job_id) (last_over_time(hindcast_job_iteration{{{SCOPE},{NODE}}}{_RANGE})) or "
    f'count by (hpc_job) (last_over_time(DCGM_FI_DEV_GPU_UTIL{{{SCOPE},{NODE},hpc_job!=""}}{_RANGE})))',
    regex='/(?:job_id|hpc_job)="([^"]+)"/',
    all_is_listed=True,
)
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
