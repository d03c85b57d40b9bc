"""Rows of a GPU's memory are to be replaced by spare ones: that waits for a reset, or fails for want of spares."""

from collections.abc import Iterable
from typing import Literal

from pydantic import AliasChoices, Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu


class RowRemap(OnGpu):
    """Pending until a reset at `until`, or `failed`; if `logged`, the driver logs XID 63 or 64. No job feels it."""

    kind: Literal["row_remap"]
    failed: bool = False
    rows: int = Field(default=1, gt=0)
    uncorrectable: bool = False
    logged: bool = Field(default=True, validation_alias=AliasChoices("logged", "told"))
    """Scenario files of before have the key "told"."""

    def effects(self, world: World) -> Iterable[Effect]:
        """Set the flags, count the rows."""
        node = world.node(self.node)
        gpu = world.gpus(node, self.gpu)
        yield Effect("gpu.remap_failed" if self.failed else "gpu.remap_pending", gpu, 1.0, self.course())
        if not self.failed:
            detail = {"uncorrectable": self.uncorrectable}
            yield Effect("gpu.rows_remapped", gpu, float(self.rows), self.course(), detail)
        if self.logged:
            yield xid_gauge(world, (node, self.gpu), self.at, 64 if self.failed else 63)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's line."""
        if self.logged:
            yield xid_line(world, logs, (world.node(self.node), self.gpu), self.at, 64 if self.failed else 63)
