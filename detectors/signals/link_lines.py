"""What kernels write when a port loses its link, or has it again: mlx5 and other drivers, carrier lost and gained."""

import re
from typing import Final

LOST: Final = re.compile(
    r"link (?:is )?down|lost carrier|carrier lost|cable unplugged|link not ready|port.*\bDOWN\b|link_downed",
    re.IGNORECASE,
)
BACK: Final = re.compile(
    r"link (?:is )?up\b|gained carrier|cable plugged|link becomes ready|port.*\b(?:UP|ACTIVE)\b", re.IGNORECASE
)
