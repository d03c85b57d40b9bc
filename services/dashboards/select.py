"""Selectors and expressions that many panels share.

Every selector keeps to the chosen cluster and replay; `All` matches series without these labels too, so that
dashboards work on data that hindcast has not written. A node is the host part of `instance`, which every exporter has;
exporters differ in all other names for it.
"""

SCOPE = 'cluster=~"$cluster",replay=~"$replay"'
NODE = 'instance=~"($node)(:.*)?"'
OTHERS = 'instance=~"($peers)(:.*)?",instance!~"($node)(:.*)?"'
PEERS = 'instance=~"($peers)(:.*)?"'
RACK = 'rack=~"$rack"'
RATE = "[$__rate_interval]"
ONE_GPU = "cluster, replay, instance, gpu"

ACTIVE = "hindcast_finding_active"
STARTED = "hindcast_finding_started_timestamp_seconds"


def of(metric: str, *matchers: str) -> str:
    """Return a selector of `metric` in the chosen cluster and replay."""
    return f"{metric}{{{','.join((SCOPE, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    """Return the rate of a counter, a second."""
    return f"rate({of(metric, *matchers)}{RATE})"


def most(metric: str, *matchers: str, same: str) -> str:
    """Return the rates of the ten series of a counter that grew most in the time range.

    They are the same ten all along, by the labels `same`: ten at each moment would be others at every moment.
    """
    grown = f"increase({of(metric, *matchers)}[$__range] @ end())"
    return f"{rate(metric, *matchers)} and on ({same}) topk(10, {grown})"


def node(expression: str) -> str:
    """Return the expression with a label `node`, from `instance`."""
    return f'label_replace({expression}, "node", "$1", "instance", "([^:]+).*")'


def gpu(expression: str) -> str:
    """Return the expression with a label `gpu` that names node and GPU, to be read in a legend."""
    return f'label_join({node(expression)}, "gpu", "/", "node", "gpu")'


def slowed(*matchers: str) -> str:
    """Return 1 for GPUs whose clocks heat or a power brake holds down, else 0.

    Bits of the mask from 32 on: 32 and 64 thermal, 128 power brake (docs/telemetry.md). The software power cap
    (4) is normal under load; hardware slowdown (8) comes with its cause, and alone may blip as clocks change.
    """
    return f"({of('DCGM_FI_DEV_CLOCK_THROTTLE_REASONS', *matchers)} % 256 >= bool 32)"


def new_xid(*matchers: str) -> str:
    """Return the GPUs with an XID that they did not show a quarter of an hour ago; their gauge keeps the last for ever.

    13, 31, 43 and 45 are an application's doing, or follow from another's fault (docs/telemetry.md). A node that is new
    itself has no new XID.
    """
    xid = of("DCGM_FI_DEV_XID_ERRORS", 'err_code!~"0|13|31|43|45"', *matchers)
    known = f"on (cluster, instance) {of('up')} offset 15m"
    return f"max by (cluster, instance, gpu) (({xid} > 0 unless {xid} offset 15m) and {known})"


def health(*matchers: str) -> str:
    """Return by node the share of its GPUs with which nothing is wrong; 0 for a node that does not answer.

    Wrong is: slowed by heat or a power brake, a new XID, an uncorrected memory error since the driver was loaded (it
    calls for a reset), a failed row remapping.
    """
    why = {
        "slowed": f"{slowed(*matchers)} > 0",
        "xid": new_xid(*matchers),
        "remap": f"{of('DCGM_FI_DEV_ROW_REMAP_FAILURE', *matchers)} > 0",
        "ecc": f"{of('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL', *matchers)} > 0",
    }
    wrong = " or ".join(f'label_replace({text}, "why", "{name}", "", "")' for name, text in why.items())
    # Every GPU has a 0 of its own, so that the mean is over all.
    all_gpus = f"{of('DCGM_FI_DEV_GPU_TEMP', *matchers)} * 0"
    by_gpu = f"clamp_max(sum by (instance, gpu) ({wrong} or {all_gpus}), 1)"
    silent = f"min by (node) ({node(of('up', *matchers))}) == 0"
    return f"(1 - avg by (node) ({node(by_gpu)})) or ({silent})"


def last(metric: str, *matchers: str) -> str:
    """Return the last state of each finding in the time range: it is written when something changes only."""
    return f"last_over_time({of(metric, *matchers)}[$__range])"


BY_RULES = ('alertstate="firing"', 'fault!=""', 'severity!="info"')


def fired(reach: str, *matchers: str) -> str:
    """Return how often each finding fired within `reach`; where no detector runs, how often each alert of a rule did.

    Of a finding 1 is written when it fires and 0 when it is resolved: the sum is how often. An alert that begins again
    has another ALERTS_FOR_STATE.
    """
    rules = f"1 + changes({of('ALERTS_FOR_STATE', *matchers)}[{reach}])"
    really = f"last_over_time({of('ALERTS', *BY_RULES, *matchers)}[{reach}])"
    return (
        f"(sum_over_time({of(ACTIVE, *matchers)}[{reach}]) or "
        f"(({rules} and ignoring (alertstate) {really}) unless on () group({last(ACTIVE)})))"
    )


_PLACES = ("node", "switch", "mount", "job_id")
NO_INCIDENT = "none"


def incidents(*matchers: str) -> str:
    """Return by label `incident` ("FAULT of PLACE") what was found in the time range; the value is its onset.

    All findings of a fault on a node are one: eight braked GPUs are one incident of their node. Where no detector runs,
    alerts of rules that name a fault stand in; for them the value is when their condition began to hold.
    """
    really = last("ALERTS", *BY_RULES, *matchers)
    rules = f"({last('ALERTS_FOR_STATE', *matchers)} and ignoring (alertstate) {really})"
    findings = f"({last(STARTED, *matchers)} or {rules})"
    for name in _PLACES:
        findings = f'label_replace({findings}, "place", "$1", "{name}", "(.+)")'
    return f'label_join({findings}, "incident", " of ", "fault", "place")'


def of_incident(*matchers: str) -> str:
    """Return what was found of the chosen incident; nothing where none is chosen."""
    return f'{incidents(*matchers)} and on (incident) label_replace(vector(1), "incident", "$incident", "", "")'
