"""How fast a measured quantity grows within the lives of a process, with a confidence interval.

A killed process starts again from nothing, so each life has its own slope (Theil and Sen's, which single spikes do not move),
and the result is their mean, weighted by length. Neighbouring samples are far from independent, which the interval assumes:
medians of longer stretches are compared instead.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import theilslopes

HOUR: Final = 3600.0
STRETCHES: Final = 60  # that a life is cut into

Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # seconds, values


class Slope(NamedTuple):
    """Growth per hour with its 95 % interval, and the level."""

    per_hour: float
    low: float
    high: float
    level: float  # median

    @property
    def share(self) -> float:
        """Growth per hour as a share of the level."""
        return self.per_hour / self.level if self.level else 0.0


def slope(lives: Sequence[Series]) -> Slope:
    """Of all `lives` together."""
    thinned = [_thinned(*life) for life in lives if len(life[0]) >= 2]
    found = [theilslopes(values, seconds) for seconds, values in thinned]
    lengths = [seconds[-1] - seconds[0] for seconds, _ in thinned]
    rows = [(each.slope, each.low_slope, each.high_slope) for each in found]
    per_second = np.average(rows, axis=0, weights=lengths)
    level = float(np.median(np.concatenate([values for _, values in thinned])))
    return Slope(*(float(value) * HOUR for value in per_second), level)


def _thinned(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> Series:
    group = -(-len(seconds) // STRETCHES)
    if group == 1:
        return seconds, values
    whole = len(seconds) // group * group
    first, second = (np.median(each[:whole].reshape(-1, group), axis=1) for each in (seconds, values))
    return first, second
