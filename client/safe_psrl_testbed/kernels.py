"""The true kernels [S, A, S] of the presets. Their parameters are probabilities, and part of a scenario's name."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.problem.presets import CAPACITY, next_stock_probability

ARRIVAL: Final = (0.9, 0.1)  # streaming buffer: probability that a packet arrives, by fast and by slow service
DEPARTURE: Final = 0.8  # and that one is played


def streaming_buffer(fast: float = ARRIVAL[0], slow: float = ARRIVAL[1], departure: float = DEPARTURE) -> NDArray[np.float64]:
    """Next = clip(s + arrival - departure, 0, 9) (paper, section 7). A packet arrives by fast or by slow service."""
    p = np.zeros((10, 2, 10))
    for s in range(10):
        for a, arrival in enumerate((fast, slow)):
            for arrives, p_arrives in ((1, arrival), (0, 1 - arrival)):
                for departs, p_departs in ((1, departure), (0, 1 - departure)):
                    p[s, a, min(max(s + arrives - departs, 0), 9)] += p_arrives * p_departs
    return p


def inventory() -> NDArray[np.float64]:
    """Next = max(0, s + a - demand). An order beyond capacity is unavailable; its row keeps the state."""
    size = CAPACITY + 1
    p = np.zeros((size, size, size))
    for s in range(size):
        for a in range(size):
            if s + a <= CAPACITY:
                p[s, a] = [next_stock_probability(s + a, after) for after in range(size)]
            else:
                p[s, a, s] = 1.0
    return p


def factored_toy() -> NDArray[np.float64]:
    """Action 0 stays, action 1 moves on to (s + 1) mod 3."""
    p = np.zeros((3, 2, 3))
    for s in range(3):
        p[s, 0, s] = p[s, 1, (s + 1) % 3] = 1.0
    return p


KERNELS: Final[dict[str, Callable[..., NDArray[np.float64]]]] = {
    "streaming-buffer": streaming_buffer,
    "inventory": inventory,
    "factored-toy": factored_toy,
    "continuing-buffer": streaming_buffer,
}
