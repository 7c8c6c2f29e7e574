"""The buffer transitions of the network, compared with the paper's idealised kernel."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl_testbed.kernels import streaming_buffer

SERVICES: Final = ("fast", "slow")
MOVES: Final = ("down", "stay", "up", "up more")


def kernel_rows(counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    """For each service, where the buffer is empty and where it is not. States are weighted by their visits."""
    ideal = streaming_buffer()
    return [
        {
            "service": name,
            "buffer": where,
            "seen": int(counts[states, action].sum()),
            "cell": _moves(counts[states, action], states.start),
            "paper": _moves(ideal[states, action] * counts[states, action].sum(axis=1)[:, None], states.start),
        }
        for action, name in enumerate(SERVICES)
        for where, states in (("empty", slice(0, 1)), ("not empty", slice(1, len(counts))))
    ]


def _moves(weights: NDArray[Any], first: int) -> dict[str, float]:
    """The shares of moves down, none, up by one, and up by more, of rows from state `first` on; 0 without visits."""
    sums = np.zeros(len(MOVES))
    for i, row in enumerate(weights):
        np.add.at(sums, np.clip(np.arange(len(row)) - (first + i), -1, 2) + 1, row)
    shares = sums / sums.sum() if sums.any() else sums
    return dict(zip(MOVES, shares.tolist(), strict=True))
