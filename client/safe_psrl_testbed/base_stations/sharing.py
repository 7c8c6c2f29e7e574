"""Weighted max-min sharing of a cell's capacity: in proportion to weights, at most what a device needs."""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-12


def proportional_shares(
    weights: NDArray[np.float64], needs: NDArray[np.float64], cells: NDArray[np.int64], num_cells: int
) -> NDArray[np.float64]:
    """[D]: of each device, the part of its cell's time that it gets; those in one cell add up to at most 1.

    What a device does not need is shared among the others, in proportion again, until the capacity or the need is exhausted.
    """
    shares = np.zeros(len(weights))
    left = np.ones(num_cells)
    waiting = needs > 0
    while waiting.any():
        sums = np.bincount(cells[waiting], weights[waiting], num_cells)
        offered = np.zeros(len(weights))
        offered[waiting] = weights[waiting] * (left / np.maximum(sums, TOLERANCE))[cells[waiting]]
        satisfied = waiting & (needs <= offered + TOLERANCE)
        # a cell without a satisfied device hands out its offers, and is done
        done = waiting & (np.bincount(cells[satisfied], minlength=num_cells) == 0)[cells]
        shares[done] = offered[done]
        shares[satisfied] = np.minimum(needs[satisfied], offered[satisfied])
        left -= np.bincount(cells[satisfied], shares[satisfied], num_cells)
        left = np.maximum(left, 0.0)
        waiting &= ~(satisfied | done)
    return shares
