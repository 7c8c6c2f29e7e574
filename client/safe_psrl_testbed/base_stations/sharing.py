"""How the devices in a cell share its capacity: in proportion to their weights, but nobody gets more than it needs."""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-12


def proportional_shares(
    weights: NDArray[np.float64], needs: NDArray[np.float64], cells: NDArray[np.int64], num_cells: int
) -> NDArray[np.float64]:
    """[D]: of each device, the part of its cell's time that it gets; those in one cell add up to at most 1.

    Whoever needs less than its part gives the rest to the others, again in proportion, until all is given or needed no more.
    """
    shares = np.zeros(len(weights))
    left = np.ones(num_cells)
    wanting = needs > 0
    while wanting.any():
        sums = np.bincount(cells[wanting], weights[wanting], num_cells)
        offered = np.zeros(len(weights))
        offered[wanting] = weights[wanting] * (left / np.maximum(sums, TOLERANCE))[cells[wanting]]
        content = wanting & (needs <= offered + TOLERANCE)
        # a cell in which nobody is content gives out what it offers, and is done
        done = wanting & (np.bincount(cells[content], minlength=num_cells) == 0)[cells]
        shares[done] = offered[done]
        shares[content] = np.minimum(needs[content], offered[content])
        left -= np.bincount(cells[content], shares[content], num_cells)
        left = np.maximum(left, 0.0)
        wanting &= ~(content | done)
    return shares
