"""What optimistic algorithms keep of a kernel: counts, empirical rows, confidence widths. Shapes [L, S, A, S], L = 1 or H."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.problem.spec import CmdpSpec


class Counts(NamedTuple):
    """`mean` is the empirical row of a pair; even over all states until it is visited."""

    transitions: NDArray[np.int64]  # [L, S, A, S]
    visits: NDArray[np.int64]  # [L, S, A]
    mean: Floats  # [L, S, A, S]


def no_counts(spec: CmdpSpec, *, per_step: bool) -> Counts:
    shape = (spec.horizon if per_step else 1, spec.num_states, spec.num_actions, spec.num_states)
    return Counts(np.zeros(shape, np.int64), np.zeros(shape[:3], np.int64), np.full(shape, 1.0 / spec.num_states))


@compiled
def record_path(counts: Counts, states: NDArray[np.int64], actions: NDArray[np.int64]) -> None:
    """Add an episode's transitions; `states` has one more entry than `actions`."""
    for h in range(actions.size):
        step = h if counts.visits.shape[0] > 1 else 0
        s, a = states[h], actions[h]
        counts.transitions[step, s, a, states[h + 1]] += 1
        counts.visits[step, s, a] += 1
        for t in range(counts.mean.shape[3]):
            counts.mean[step, s, a, t] = counts.transitions[step, s, a, t] / counts.visits[step, s, a]


@compiled
def bernstein_width(mean: float, visits: int, log_term: float) -> float:
    """min(1, 2 sqrt(L phat (1 - phat) / n) + 14 L / (3 n)); 1 if unvisited (Bura et al. 2022; Efroni et al. 2020)."""
    if visits == 0:
        return 1.0
    return min(1.0, 2.0 * math.sqrt(log_term * mean * (1.0 - mean) / visits) + 14.0 * log_term / (3.0 * visits))
