"""Noticing that the kernel has changed, and forgetting what was learned before (not in the paper).

Each row keeps a short memory beside its counts, the long one: at a visit the short memory shrinks by 1 / `memory_visits`, then
counts the next state as the long one does. Before both are updated, their predictions of the next state are compared,

    LR = (recent prediction of s') / (long prediction of s'),    R <- (R + 1) LR,

R being the row's Shiryaev-Roberts statistic. Under the long memory's own predictions the mean of LR is 1, so the sum of all R
less the number of transitions is a martingale. By Doob's inequality the sum reaches a limit within N transitions with a
probability of at most N / limit, and by optional stopping at most once in `limit` transitions on average. The limit is
`false_alarm_steps / 0.1`. The sum follows from the observations alone, and is read when an episode starts, the first moment at
which it matters.
"""

from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled

MOST_ROWS = 5  # that a detection names
LARGEST_STATISTIC = 1e15  # of a row: far above every limit, and finite however long an episode is


class RowStatistic(NamedTuple):
    """The statistic of one row of the kernel."""

    step: int  # 0 if all steps share one kernel
    state: int
    action: int
    statistic: float


class DriftReading(NamedTuple):
    """The sum of the statistics at the start of an episode; `rows` are the greatest if drift is detected, else empty."""

    statistic: float
    rows: tuple[RowStatistic, ...]

    @property
    def detected(self) -> bool:
        return bool(self.rows)


@compiled
def count_visit(
    prior: Floats, counts: Floats, recent: Floats, place: int, statistic: float, keep: float, keep_recent: float
) -> float:
    """Count a next state in one row [W] of both memories; return the row's next statistic.

    Without a short memory `recent` is empty, and the statistic stays. It stays as well where both predict alike: a row with
    one possible next state never says anything.
    """
    if recent.size > 0:
        weight, total, total_recent = 0.0, 0.0, 0.0
        for t in range(prior.size):
            weight += prior[t]
            total += counts[t]
            total_recent += recent[t]
        ratio = (prior[place] + recent[place]) / (weight + total_recent) / ((prior[place] + counts[place]) / (weight + total))
        if ratio != 1.0:
            statistic = min((statistic + 1.0) * ratio, LARGEST_STATISTIC)
        for t in range(recent.size):
            recent[t] *= keep_recent
        recent[place] += 1.0
    if keep < 1.0:
        for t in range(counts.size):
            counts[t] *= keep
    counts[place] += 1.0
    return statistic


@compiled
def total_statistic(statistics: Floats) -> float:
    """The sum over all rows, in their order."""
    total = 0.0
    for statistic in statistics.ravel():
        total += statistic
    return total


@compiled
def forget(counts: Floats, recent: Floats, sums: Floats, visits: Floats) -> None:
    """Give every row the weight and the distribution of its short memory, in place.

    Learned signals have no short memory: they keep their means, with the weight that their pair has left.
    """
    steps, num_states, num_actions, width = counts.shape
    for s in range(num_states):
        for a in range(num_actions):
            before, after = 0.0, 0.0
            for h in range(steps):
                for t in range(width):
                    before += counts[h, s, a, t]
                    after += recent[h, s, a, t]
                    counts[h, s, a, t] = recent[h, s, a, t]
            if before > 0.0:
                for h in range(visits.shape[0]):
                    visits[h, s, a] *= after / before
                    for n in range(sums.shape[0]):
                        sums[n, h, s, a] *= after / before


def greatest_rows(statistics: Floats) -> tuple[RowStatistic, ...]:
    """The rows that contribute most, the greatest first."""
    order = np.argsort(-statistics, axis=None, kind="stable")[:MOST_ROWS]
    rows = zip(*(axis.tolist() for axis in np.unravel_index(order, statistics.shape)), strict=True)
    return tuple(RowStatistic(h, s, a, statistics[h, s, a].item()) for h, s, a in rows if statistics[h, s, a] > 0.0)
