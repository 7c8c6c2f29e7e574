"""Predefined problems by name, without their kernels, which live with the environments."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Final

import numpy as np

from safe_psrl.errors import SpecError
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.spec import CONTINUING, CmdpSpec

DEMAND: Final = (0.3, 0.2, 0.2, 0.2, 0.05, 0.05)  # inventory: probability of a demand of 0, 1, ... 5 items
CAPACITY: Final = len(DEMAND) - 1


def streaming_buffer() -> CmdpSpec:
    """The paper's media stream (section 7): keep a playback buffer from running dry, using the fast service sparingly.

    State: packets buffered. Action 0: fast service, 1: slow. Reward 1 unless the buffer is empty; cost 1 for fast.
    """
    reward = np.repeat(np.arange(10) > 0, 2).reshape(10, 2)
    cost = np.tile([1.0, 0.0], (10, 1))
    return CmdpSpec(
        num_states=10,
        num_actions=2,
        horizon=10,
        reward=reward,
        constraints=[Constraint("fast-service", cost, cost_budget=5.0, satisfiable_cost=1.0)],
    )


def continuing_buffer() -> CmdpSpec:
    """The media stream without an end: the same service for ever, fast for at most half of the time."""
    clip = streaming_buffer()
    return CmdpSpec(
        num_states=clip.num_states,
        num_actions=clip.num_actions,
        horizon=CONTINUING,
        reward=clip.signals[0, 0],
        constraints=[Constraint("fast-service", clip.signals[1, 0], cost_budget=0.5, satisfiable_cost=0.1)],
    )


def inventory() -> CmdpSpec:
    """A shop of six stock levels that orders up to capacity. Reward: sales; cost: ordering and holding, scaled to [0, 1]."""
    size = CAPACITY + 1
    stock, order = np.ogrid[:size, :size]
    available = stock + order <= CAPACITY
    cost = np.where(order > 0, 4 + 2 * order, 0) + stock + order
    return CmdpSpec(
        num_states=size,
        num_actions=size,
        horizon=7,
        reward=np.where(available, _sales(), 0.0),
        constraints=[Constraint("operation", np.where(available, cost / 19, 0.0), 3.5, 0.7)],
        available_actions=available,
    )


def factored_toy() -> CmdpSpec:
    """Three states in a ring: action 1 moves on for a reward that grows with the state, and costs 1; action 0 rests."""
    moves = np.array([0.0, 1.0])
    return CmdpSpec(
        num_states=3,
        num_actions=2,
        horizon=6,
        reward=np.outer(np.arange(1, 4) / 3, moves),
        constraints=[Constraint("moves", np.tile(moves, (3, 1)), 3.0, 0.6)],
    )


PRESETS: Final[dict[str, Callable[[], CmdpSpec]]] = {
    "streaming-buffer": streaming_buffer,
    "inventory": inventory,
    "factored-toy": factored_toy,
    "continuing-buffer": continuing_buffer,
}


def preset(name: str) -> CmdpSpec:
    """The specification called `name`."""
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError("preset", name, f"must be one of {', '.join(PRESETS)}{hint}")
    return PRESETS[name]()


def next_stock_probability(stock: int, next_stock: int) -> float:
    """Inventory: from `stock` after the order's arrival to `next_stock` after the day's demand, unmet demand being lost."""
    if next_stock > 0:
        sold = stock - next_stock
        return DEMAND[sold] if 0 <= sold <= CAPACITY else 0.0
    return sum(DEMAND[stock:])


def _sales() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Reward [stock, order], as the published code has it: each next stock counts with its whole probability."""
    reward = np.zeros((CAPACITY + 1, CAPACITY + 1))
    for stock, order in np.argwhere(np.add.outer(np.arange(CAPACITY + 1), np.arange(CAPACITY + 1)) <= CAPACITY):
        for sold in range(stock + order + 1):
            left = int(stock + order - sold)
            reward[stock, order] += next_stock_probability(int(stock + order), left) * 0.08 * sold / 0.132
    return reward
