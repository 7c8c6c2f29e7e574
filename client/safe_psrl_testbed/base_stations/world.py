"""Cells on a grid, devices that move among them, and the media that each device receives in an epoch."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CLASSES: Final = {"camera": 0.0, "pedestrian": 1.5, "vehicle": 15.0}  # metres a second
SPACING: Final = 400.0  # metres between stations
EPOCH_SECONDS: Final = 1.0
EXPONENT: Final = 3.5  # of the path loss
EDGE_SNR: Final = 4.0  # dB in the mean, half a spacing from the station
MOST_EFFICIENT: Final = 5.5  # bits a second and hertz, whatever the signal
HYSTERESIS: Final = 3.0  # dB by which another cell must be stronger for a handover
FAST_WEIGHT: Final = 4.0  # of the fast service in sharing a cell; the slow one has 1
FAST_RATE: Final = 1.0  # media units an epoch that the fast service brings at most
SLOW_RATE: Final = 0.2  # and the slow one
SUPPLY: Final = 1.3  # media units an epoch that a cell can bring to each of the devices that it has in the mean
TYPICAL_EFFICIENCY: Final = 3.0  # bits a second and hertz, for `SUPPLY`
LEAST_UNITS: Final = 1e-9  # avoids a division by zero for a device without signal


@dataclass(frozen=True)
class WorldSettings:
    cells: int = 20
    devices: int = 300
    seed: int = 1


class BaseStations:
    """The world. The same seed gives the same movement and fading, whatever the services."""

    def __init__(self, settings: WorldSettings) -> None:
        self.settings = settings
        columns = int(np.ceil(np.sqrt(settings.cells)))
        rows = int(np.ceil(settings.cells / columns))
        places = np.arange(settings.cells)
        self.stations = (np.column_stack([places % columns, places // columns]) + 0.5) * SPACING  # [C, 2]
        self.classes = np.arange(settings.devices) % len(CLASSES)  # [D], index of the class
        speeds = np.array(list(CLASSES.values()))[self.classes]
        generators = [np.random.default_rng([settings.seed, part]) for part in (1, 2)]
        self._mobility = RandomWaypoints(generators[0], np.array([columns, rows]) * SPACING, speeds)
        self._fading = generators[1]
        self.cells = self._strengths().argmax(axis=1)  # [D], the serving cell
        self.handovers = 0
        devices_a_cell = settings.devices / settings.cells
        self._units_of_efficiency = SUPPLY * devices_a_cell / TYPICAL_EFFICIENCY  # that all of a cell's time brings
        self.shares = np.zeros(settings.devices)

    @property
    def positions(self) -> NDArray[np.float64]:
        """[D, 2]."""
        return self._mobility.positions

    def advance(self, fast: NDArray[np.bool_]) -> NDArray[np.float64]:
        """An epoch in which those devices have the fast service; the media units that each received."""
        self._mobility.advance(EPOCH_SECONDS)
        strengths = self._strengths()
        self._hand_over(strengths)
        mine = strengths[np.arange(len(self.cells)), self.cells]
        faded = 10 ** (mine / 10) * self._fading.exponential(size=len(mine))
        units = self._units_of_efficiency * np.minimum(np.log2(1 + faded), MOST_EFFICIENT)  # with all of the cell's time
        needs = np.where(fast, FAST_RATE, SLOW_RATE) / np.maximum(units, LEAST_UNITS)
        self.shares = proportional_shares(np.where(fast, FAST_WEIGHT, 1.0), needs, self.cells, self.settings.cells)
        received: NDArray[np.float64] = self.shares * units
        return received

    def _strengths(self) -> NDArray[np.float64]:
        """[D, C]: signal over noise, dB."""
        distances = np.linalg.norm(self.positions[:, None] - self.stations[None], axis=2)
        strengths: NDArray[np.float64] = EDGE_SNR - 10 * EXPONENT * np.log10(np.maximum(distances, 10.0) / (SPACING / 2))
        return strengths

    def _hand_over(self, strengths: NDArray[np.float64]) -> None:
        best = strengths.argmax(axis=1)
        rows = np.arange(len(best))
        moves = strengths[rows, best] > strengths[rows, self.cells] + HYSTERESIS
        self.handovers += int(moves.sum())
        self.cells = np.where(moves, best, self.cells)


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
        # a cell without a satisfied device shares out its offers, and is done
        done = waiting & (np.bincount(cells[satisfied], minlength=num_cells) == 0)[cells]
        shares[done] = offered[done]
        shares[satisfied] = np.minimum(needs[satisfied], offered[satisfied])
        left -= np.bincount(cells[satisfied], shares[satisfied], num_cells)
        left = np.maximum(left, 0.0)
        waiting &= ~(satisfied | done)
    return shares
