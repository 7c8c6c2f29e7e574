"""Random-waypoint mobility: each device moves to a random point, and then to the next one."""

import numpy as np
from numpy.typing import NDArray


class RandomWaypoints:
    """Positions [D, 2], in metres, within `sides` [2]; `speeds` [D] in metres a second."""

    def __init__(self, generator: np.random.Generator, sides: NDArray[np.float64], speeds: NDArray[np.float64]) -> None:
        self._generator = generator
        self._sides = sides
        self._speeds = speeds
        self.positions = generator.uniform(0, sides, (len(speeds), 2))
        self._goals = generator.uniform(0, sides, (len(speeds), 2))

    def advance(self, seconds: float) -> None:
        way = self._goals - self.positions
        distance = np.linalg.norm(way, axis=1)
        reach = self._speeds * seconds
        arrived = reach >= distance
        self.positions = np.where(
            arrived[:, None], self._goals, self.positions + way * (reach / np.maximum(distance, reach + 1e-9))[:, None]
        )
        # the number of draws does not depend on arrivals, so that seeds stay comparable
        self._goals = np.where(arrived[:, None], self._generator.uniform(0, self._sides, way.shape), self._goals)
