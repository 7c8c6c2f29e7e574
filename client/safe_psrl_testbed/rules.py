"""Fixed rules for the service of media players, to compare with what is learned. They know the step and the buffer."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

FAST: Final = 0  # the streaming buffer's actions
SLOW: Final = 1
HALF: Final = 5  # of the buffer, and of the horizon

Rule = Callable[[int, NDArray[np.int64]], NDArray[np.int64]]  # from the step and the players' states to their actions

RULES: Final[dict[str, Rule]] = {
    "always-slow": lambda _, states: np.full_like(states, SLOW),
    "always-fast": lambda _, states: np.full_like(states, FAST),
    "fast-below-half": lambda _, states: np.where(states < HALF, FAST, SLOW),
    "fast-at-first": lambda step, states: np.full_like(states, FAST if step < HALF else SLOW),  # spends the budget at once
}
