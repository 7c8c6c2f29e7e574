"""How fast a measured quantity grows within the lives of a process, and how sure that is.

A killed process begins again from nothing, so only pairs of samples of the same life are compared: the slope is the median
of all of their slopes (Theil and Sen), which single spikes do not move. Its spread comes from resampling whole blocks of
neighbouring samples, as samples one second apart are far from independent.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

HOUR: Final = 3600.0
RESAMPLES: Final = 100
BLOCKS: Final = 20  # a life is cut into about so many
MOST_SAMPLES: Final = 120  # of a life; longer ones are thinned by medians, as pairs grow with the square

Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # seconds, values


class Slope(NamedTuple):
    """Growth an hour, with a 95% interval, and the level that it starts from."""

    per_hour: float
    low: float
    high: float
    level: float  # median

    @property
    def share(self) -> float:
        """Growth an hour as a share of the level."""
        return self.per_hour / self.level if self.level else 0.0


def slope(lives: Sequence[Series], seed: int = 0) -> Slope:
    """Of all `lives` together."""
    thinned = [_thinned(*life) for life in lives if len(life[0]) >= 2]
    chosen = np.random.default_rng(seed)
    estimates = [_median_slope([_resampled(*life, chosen) for life in thinned]) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(estimates, [0.025, 0.975])
    level = float(np.median(np.concatenate([values for _, values in thinned])))
    return Slope(_median_slope(thinned), float(low), float(high), level)


def _median_slope(lives: Sequence[Series]) -> float:
    """An hour."""
    slopes, weights = [], []
    for seconds, values in lives:
        first, second = np.triu_indices(len(seconds), 1)
        apart = seconds[second] - seconds[first]
        real = apart > 0
        slopes.append((values[second] - values[first])[real] / apart[real])
        weights.append(apart[real])
    every, weight = np.concatenate(slopes), np.concatenate(weights)
    if not len(every):
        return float("nan")
    order = np.argsort(every)  # the median weighted by distance: pairs that are far apart say more
    reached = np.cumsum(weight[order])
    return float(every[order][np.searchsorted(reached, reached[-1] / 2)] * HOUR)


def _resampled(seconds: NDArray[np.float64], values: NDArray[np.float64], chosen: np.random.Generator) -> Series:
    length = max(1, len(seconds) // BLOCKS)
    starts = chosen.integers(0, len(seconds) - length + 1, size=-(-len(seconds) // length))
    index = np.sort((starts[:, None] + np.arange(length)).ravel())
    return seconds[index], values[index]


def _thinned(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> Series:
    group = -(-len(seconds) // MOST_SAMPLES)
    if group == 1:
        return seconds, values
    whole = len(seconds) // group * group
    return tuple(np.median(each[:whole].reshape(-1, group), axis=1) for each in (seconds, values))  # type: ignore[return-value]
