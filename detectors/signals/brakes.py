"""How far clock and power fall by a brake, a cap or heat: what is reported as such, and straggler leaves to it."""

from typing import Final

SLOWED: Final = 0.9
"""What a power cap takes from one GPU and not from the next is within a tenth (A100: 1290 to 1410 MHz at 400 W)."""
NODE_LEFT: Final = 0.8
"""Of clock and power of a whole node: a BMC that is left with half of its supplies caps the GPUs at 400 of 700 W."""
HALVED: Final = 0.6
"""HW_SLOWDOWN divides clocks by two or more (DCGM dcgm_fields.h), with room for what a mean and rounding add."""
BY_TWO: Final = 0.52
"""Half, and two steps of 15 MHz: on one GPU that gives no reason, what takes less is a limit or clocks that were set on
it (a straggler), as no supply brakes a single one."""
COSTS: Final = 0.9
"""Of its peers' clock: a tenth of somebody's work is an effect. Chips of a model differ by half of that."""
UNSPENT: Final = 0.8
"""The software cap holds a card at its limit, in the mean over steps at nine tenths of it: at so much less, another
limit than the driver's holds it (a BMC's cap, for a supply that is lost)."""
IDLE_POWER: Final = 0.2
"""Of its limit: where no utilisation is read, a GPU that draws less is not at work. Idle ones draw 40 of 300 W (V100),
60 of 400 (A100), 110 of 700 (H100) at most; under a brake 150 of 400 (Blue Vela report), 200 of 700."""
