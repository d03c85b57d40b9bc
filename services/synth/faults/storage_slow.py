"""A file system answers slowly: some of its servers, its metadata, or all of it because others use it up."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import Lasting, PlacedTruth

_COMPLAINTS_APART_S = 97.0  # between two clients' lines, at least a request timeout
_COMPLAINTS = 12  # lines at most: the kernel's own rate limit keeps the rest back


class StorageSlow(Lasting):
    """`what` is slow, `size` times: ``servers`` (a `share` of them), ``metadata``; with ``load``, others use `size`.

    ``jobs``: the scenario's own jobs ask more of the mount than it has; that they do is in their training.
    """

    kind: Literal["storage_slow"]
    mount: str
    what: Literal["servers", "metadata", "load", "jobs"]
    size: float = Field(default=1.0, gt=0)
    share: float = Field(default=1.0, gt=0, le=1)
    complains: bool = Field(default=True, description="clients' kernels write lines about requests that time out")

    def effects(self, world: World) -> Iterable[Effect]:
        """Slow the mount; what jobs feel of it is the storage's business."""
        if self.what == "jobs":
            return
        quantity = {"servers": "mount.slow", "metadata": "mount.metadata_slow", "load": "mount.load"}[self.what]
        detail: dict[str, object] = {"mount": world.mount(self.mount)}
        if self.what == "servers":
            detail["share"] = self.share
        yield Effect(quantity, np.empty(0, dtype=np.int64), self.size, self.course(), detail)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what clients' kernels write, for the kinds of file system that write anything."""
        kind = world.profile.mount_of(world.mount(self.mount)).kind
        if not self.complains or kind not in {"lustre", "nfs"}:
            return
        nodes = world.profile.nodes
        begins = self.at + 0.5 * self.ramp_s + 41.0
        for number in range(_COMPLAINTS):
            at, node = begins + number * _COMPLAINTS_APART_S, (7 * number + 3) % nodes
            if at >= self.until:
                return
            if kind == "nfs":
                yield logs.kernel(node, at, "warning", "nfs: server nfs01 not responding, still trying")
                yield logs.kernel(node, at + 6.2, "info", "nfs: server nfs01 OK")
            else:
                request = (
                    f"req@ffff9c4f0{number:x}3a8000 x17943{number:02d}4417664/t0(0) o3->fs-OST0003-osc-ffff9c5e2c0b"
                )
                text = (
                    f"Lustre: 41{number:02d}:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed"
                )
                yield logs.kernel(node, at, "warning", f"{text} out for slow reply: {request}")

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the mount's label."""
        if self.truth is not None:
            everyone = list(range(world.profile.nodes))
            entity: dict[str, str | int] = {"mount": world.mount(self.mount)}
            yield PlacedTruth(truth=self.truth, entity=entity, span=(self.at, self.until), nodes=everyone)
