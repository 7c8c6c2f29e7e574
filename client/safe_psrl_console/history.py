"""An agent's status over time, in bounded space. Values are running sums, so dropping a point loses nothing."""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2

RECENT_POINTS: Final = 180  # at a status a second, three minutes
WHOLE_POINTS: Final = 240
FEWEST_PARTS: Final = 8


class Point(NamedTuple):
    """One status. Tuples have an entry for each constraint."""

    completed: int
    reward: float  # sum over completed episodes
    regrets: tuple[float, ...]
    regret_bounds: tuple[float, ...]
    duals: tuple[float, ...]
    pessimism: tuple[float, ...]


class Interval(NamedTuple):
    """Between two points: means of the episodes completed in it, and the later point."""

    end: Point
    episodes: int
    reward: float
    costs: tuple[float, ...]


class History:
    """The latest points one by one, and all since the first at a resolution that halves whenever space runs out."""

    def __init__(self, recent_points: int = RECENT_POINTS, whole_points: int = WHOLE_POINTS) -> None:
        self.recent: deque[Point] = deque(maxlen=recent_points)
        self._whole: list[Point] = []
        self._most = whole_points
        self._stride = 1
        self._added = 0

    @property
    def latest(self) -> Point | None:
        return self.recent[-1] if self.recent else None

    def add(self, point: Point) -> None:
        """A status without a newly completed episode replaces the previous one."""
        if len(self.recent) > 1 and self.recent[-1].completed == point.completed:
            if self._whole[-1] is self.recent[-1]:
                self._whole[-1] = point
            self.recent[-1] = point
            return
        self.recent.append(point)
        if self._added % self._stride == 0:
            self._whole.append(point)
        self._added += 1
        if len(self._whole) >= self._most:
            self._whole = self._whole[::2]
            self._stride *= 2

    def whole(self) -> list[Point]:
        """From the first point to the latest."""
        latest = self.latest
        return self._whole if latest is None or self._whole[-1] is latest else [*self._whole, latest]

    def thinned(self, most: int) -> list[Point]:
        """At most about `most` of the recent points. The selection is stable when points are added, so lines do not flicker."""
        stride = max(1, -(-len(self.recent) // most))
        first = self._added - len(self.recent)
        kept = [point for i, point in enumerate(self.recent, first) if i % stride == 0]
        return kept if not self.recent or (kept and kept[-1] is self.recent[-1]) else [*kept, self.recent[-1]]


def point_of(status: admin_pb2.AgentStatus) -> Point:
    constraints = status.constraints
    return Point(
        status.completed_episodes,
        status.cumulative_reward,
        tuple(one.constraint_regret for one in constraints),
        tuple(one.constraint_regret_bound for one in constraints),
        tuple(one.dual_variable for one in constraints),
        tuple(one.pessimism for one in constraints),
    )


def origin(num_constraints: int) -> Point:
    """The state before the first episode: every sum is zero."""
    zeros = (0.0,) * num_constraints
    return Point(0, 0.0, zeros, zeros, zeros, zeros)


def between(first: Point, last: Point, budgets: Sequence[float]) -> Interval | None:
    """Mean cost = budget + change of the regret / episodes. None if no episode was completed."""
    episodes = last.completed - first.completed
    if episodes <= 0:
        return None
    costs = tuple(
        max(0.0, budget + (after - before) / episodes)  # rounding of long sums must not make a cost negative
        for budget, before, after in zip(budgets, first.regrets, last.regrets, strict=True)
    )
    return Interval(last, episodes, (last.reward - first.reward) / episodes, costs)


def intervals(points: Sequence[Point], budgets: Sequence[float]) -> Iterator[Interval]:
    for first, last in itertools.pairwise(points):
        interval = between(first, last, budgets)
        if interval is not None:
            yield interval


def standard_errors(parts: Sequence[Interval], whole: Interval) -> tuple[float, ...]:
    """Of the mean costs of `whole`, from the variance of its `parts`. Infinite if they are too few."""
    if len(parts) < FEWEST_PARTS:
        return tuple(math.inf for _ in whole.costs)
    episodes = sum(part.episodes for part in parts)
    return tuple(
        math.sqrt(sum(part.episodes * (part.costs[i] - mean) ** 2 for part in parts) / (len(parts) - 1) / episodes)
        for i, mean in enumerate(whole.costs)
    )
