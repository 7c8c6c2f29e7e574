"""Lists of possible next states: the form of large problems in which a pair leads to few states.

Tables over next states are [L, S, A, W]. With lists, `next_states` [1|H, S, A, W] holds the state of each entry, W being the
longest list. Without, W = S and entry t is of state t; `next_states` is then `EVERY_STATE`, which has no rows.

Rows ascend, in the order of a table over all states. A shorter row repeats its last state at prior 0.
"""

from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.arrays import NextStates
from safe_psrl.problem.checks import Shapes, checked_table, frozen, refuse_where, sealed

EVERY_STATE: Final[NextStates] = sealed(np.empty((0, 0, 0, 0), np.int32))
NONE: Final = -1  # in user input, after the last next state of a shorter row


def width_of(next_states: ArrayLike) -> int:
    """W of user input; 0 if it is not a table."""
    try:
        shape = np.shape(next_states)
    except ValueError:  # rows of unequal length
        return 0
    return shape[-1] if shape else 0


def checked_next_states(value: ArrayLike, num_states: int, shapes: Shapes) -> tuple[NextStates, NDArray[np.bool_]]:
    """The next states [1|H, S, A, W], shorter rows filled up; and which entries are next states, of the given shape."""
    table = checked_table("next_states", value, shapes)
    whole = (table == np.floor(table)) & (table >= NONE) & (table < num_states)
    refuse_where("next_states", table, ~whole, f"must be a whole number from 0 to {num_states - 1}, or {NONE} for none")
    possible = table > NONE
    unordered = np.zeros(table.shape, np.bool_)
    unordered[..., 1:] = possible[..., 1:] & (table[..., 1:] <= table[..., :-1])
    unordered[..., 1:] |= possible[..., 1:] & ~possible[..., :-1]
    refuse_where("next_states", table, unordered, f"must be greater than the one before it; {NONE} comes last")
    filled = np.maximum(np.maximum.accumulate(table, axis=-1), 0)
    return frozen(filled[None] if filled.ndim == 3 else filled, np.int32), possible


def written(next_states: NextStates, prior: NDArray[np.float64]) -> NDArray[np.int64]:
    """[1|H, S, A, W]: in the form of user input."""
    return np.where(prior[: len(next_states)] > 0, next_states, NONE).astype(np.int64)


def place_of(row: NextStates, next_state: int) -> int:
    """The index of `next_state` in `row`; -1 if absent."""
    place = bisect_left(row, next_state)
    return place if place < len(row) and row[place] == next_state else -1
