"""An agent's past, which outlives its events: a series over all episodes, the latest episodes one by one, and a log.

`Series` covers the whole life of the agent in at most 1,024 points. The log has an entry for each change: when, what, by which
identity, and why. The fold of events fills all three, and snapshots contain them.
"""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import admin_pb2, events_pb2
from safe_psrl_server.agents.episode import Episode

MOST_POINTS: Final = 1_024
MOST_RECENT: Final = 100  # completed episodes
FIRST, NUMBER, TIME, REWARD, PREDICTED_REWARD, DRIFT = range(6)  # columns of a point
COST, BUDGET, PREDICTED, CERTIFIED, DUAL = range(5)  # of each constraint, after those
COMMON: Final = 6
EACH: Final = 5
MOST_ENTRIES: Final = 256  # of the log
KINDS: Final = {
    "agent_created": events_pb2.LOG_KIND_CREATED,
    "agent_updated": events_pb2.LOG_KIND_UPDATED,
    "agent_paused": events_pb2.LOG_KIND_PAUSED,
    "agent_resumed": events_pb2.LOG_KIND_RESUMED,
    "agent_imported": events_pb2.LOG_KIND_IMPORTED,
    "drift_detected": events_pb2.LOG_KIND_DRIFT_DETECTED,
}


def point_of(episode: Episode, event: events_pb2.Event) -> list[float]:
    """The point of one completed episode; for an epoch, averages per step."""
    steps = episode.weight
    started, ended = episode.started, event.episode_ended
    certified = started.certified_costs[:] or [math.nan] * len(ended.costs)
    point = [episode.number, 1, event.time_micros, ended.reward / steps, started.predicted_reward, started.drift_statistic]
    columns = (
        [cost / steps for cost in ended.costs],
        episode.cost_budgets,
        started.predicted_costs,
        certified,
        started.next_dual_variables,
    )
    for constraint in zip(*columns, strict=True):
        point += constraint
    return [float(value) for value in point]


def most_bytes(num_constraints: int) -> int:
    """Memory of a series with as many points as there can be."""
    return MOST_POINTS * (COMMON + EACH * num_constraints) * array("d").itemsize


class Series:
    """At most 1,024 points. When there are that many and all are full, neighbouring points are merged in pairs."""

    def __init__(self) -> None:
        self._values = array("d")  # of all points, one after the other: as lists they would take five times the memory
        self._width = COMMON
        self.stride = 1  # episodes of a full point

    @property
    def points(self) -> list[list[float]]:
        """A copy. Callable from any thread."""
        values, width = self._values[:], self._width
        return [values[start : start + width].tolist() for start in range(0, len(values), width)]

    @classmethod
    def read(cls, points: Floats, stride: int, num_constraints: int) -> "Series":
        """Raises ValueError."""
        width = COMMON + EACH * num_constraints
        if points.ndim != 2 or points.shape[1] != width or len(points) > MOST_POINTS or not 1 <= stride <= 2**53:
            raise ValueError(f"its series is {list(points.shape)} with a stride of {stride}")
        if not np.isfinite(np.delete(points, [COMMON + EACH * i + CERTIFIED for i in range(num_constraints)], axis=1)).all():
            raise ValueError("its series is not finite")
        if not ((points[:, NUMBER] >= 1) & (points[:, NUMBER] <= stride)).all():
            raise ValueError("its series counts episodes that do not exist")
        series = cls()
        series._values = array("d", points.astype(np.float64).tobytes())
        series._width, series.stride = width, stride
        return series

    def table(self, num_constraints: int) -> Floats:
        values = self._values[:]  # an array cannot grow while numpy looks at it
        return np.array(values, np.float64).reshape(-1, COMMON + EACH * num_constraints)

    def add(self, point: list[float]) -> None:
        self._width = len(point)
        last = self._values[-self._width :].tolist()
        if last and last[NUMBER] < self.stride:
            self._values[-self._width :] = array("d", merged(last, point))
            return
        if len(self._values) == MOST_POINTS * self._width:
            pairs = list(pairwise(self.points))[::2]
            self._values = array("d", chain.from_iterable(merged(one, other) for one, other in pairs))
            self.stride *= 2
        self._values += array("d", point)


def merged(one: list[float], other: list[float]) -> list[float]:
    """Two neighbouring points as one: means are averaged, and what describes the last episode is that of `other`."""
    number = one[NUMBER] + other[NUMBER]
    mean = [(one[NUMBER] * mine + other[NUMBER] * theirs) / number for mine, theirs in zip(one, other, strict=True)]
    mean[FIRST], mean[NUMBER] = one[FIRST], number
    for last in (TIME, DRIFT, *range(COMMON + DUAL, len(mean), EACH)):
        mean[last] = other[last]
    return mean


class Recent(NamedTuple):
    """The latest completed episodes, for one constraint. For epochs, averages per step."""

    cost: float  # mean
    budget: float  # mean
    excess_error: float  # standard error of cost - budget


class RecentEpisodes:
    """The latest 100 completed episodes."""

    def __init__(self) -> None:
        self.episodes = deque[list[float]](maxlen=MOST_RECENT)  # reward, costs, budgets, steps of an epoch or 1

    @classmethod
    def read(cls, rows: Floats, num_constraints: int) -> "RecentEpisodes":
        """Raises ValueError."""
        if rows.ndim == 2 and rows.shape[1] == 1 + 2 * num_constraints:  # written before there were epochs
            rows = np.column_stack([rows, np.ones(len(rows))])
        if rows.ndim != 2 or rows.shape[1] != 2 + 2 * num_constraints or len(rows) > MOST_RECENT or not np.isfinite(rows).all():
            raise ValueError(f"its recent episodes are {list(rows.shape)}, or not finite")
        if not (rows[:, -1:] >= 1).all():
            raise ValueError("its recent episodes have no steps")
        recent = cls()
        recent.episodes.extend(rows.tolist())
        return recent

    def table(self, num_constraints: int) -> Floats:
        return np.array(self.episodes, np.float64).reshape(-1, 2 + 2 * num_constraints)

    def add(self, reward: float, costs: Sequence[float], budgets: Sequence[float], steps: int = 1) -> None:
        self.episodes.append([reward, *costs, *budgets, steps])

    def replace(self, before: Sequence[float], after: Sequence[float]) -> None:
        """Give the latest episode with the reward and costs `before` others; none if it is not among the latest any more."""
        for row in reversed(self.episodes):
            if row[: len(before)] == list(before):
                row[: len(before)] = after
                return

    @property
    def reward(self) -> float:
        return sum(row[0] for row in self.episodes) / max(sum(row[-1] for row in self.episodes), 1)

    def of(self, constraint: int) -> Recent:
        number = len(self.episodes)
        if not number:
            return Recent(0.0, 0.0, 0.0)
        half = (len(self.episodes[0]) - 2) // 2
        steps = [row[-1] for row in self.episodes]
        total = sum(steps)
        costs = [row[1 + constraint] for row in self.episodes]
        budgets = [row[1 + half + constraint] for row in self.episodes]
        cost, budget = sum(costs) / total, sum(budgets) / total
        rows = zip(costs, budgets, steps, strict=True)
        squares = sum((mine - limit - (cost - budget) * weight) ** 2 for mine, limit, weight in rows)
        return Recent(cost, budget, math.sqrt(squares / max(number - 1, 1) * number) / total)


def log_entry(event: events_pb2.Event, episode: int, spec: CmdpSpec) -> events_pb2.LogEntry | None:
    """The entry for `event`, after `episode` started episodes; None if it is not one for the log."""
    name = event.WhichOneof("kind") or ""
    kind = KINDS.get(name)
    if kind is None:
        return None
    content = getattr(event, name)
    if name == "agent_paused" and content.guard:
        kind = events_pb2.LOG_KIND_GUARDED
    details = drift_details(event.drift_detected, spec) if name == "drift_detected" else getattr(content, "changes", ())
    return events_pb2.LogEntry(
        time_micros=event.time_micros,
        kind=kind,
        episode=episode,
        by=getattr(content, "by", ""),
        reason=getattr(content, "reason", ""),
        details=details,
        rows=event.drift_detected.rows,
    )


def drift_details(detected: events_pb2.DriftDetected, spec: CmdpSpec) -> list[str]:
    """A description of detected drift: the statistic, the rows, and the reaction."""
    done = (
        "the agent was paused"
        if detected.paused
        else {
            "alert": "nothing was forgotten",
            "forget": "what is older than the short memory was forgotten",
        }.get(detected.on_detect, detected.on_detect)
    )
    rows = [
        f"state {labelled(row.state, spec.state_names)}, action {labelled(row.action, spec.action_names)}: {row.statistic:.3g}"
        for row in detected.rows
    ]
    return [f"statistic {detected.statistic:.3g}; {done}", *rows]


def labelled(number: int, names: Sequence[str]) -> str:
    """A state or an action, with its name if it has one."""
    return f"{number} ({names[number]})" if names else str(number)


def history_of(series: Series, log: Sequence[events_pb2.LogEntry]) -> admin_pb2.GetHistoryResponse:
    return admin_pb2.GetHistoryResponse(points=[_point(row) for row in list(series.points)], entries=log)


def _point(row: list[float]) -> admin_pb2.HistoryPoint:
    first, number, time_micros, reward, predicted, drift = row[:COMMON]
    point = admin_pb2.HistoryPoint(
        episode=int(first),
        episodes=int(number),
        time_micros=int(time_micros),
        reward=reward,
        predicted_reward=predicted,
        drift_statistic=drift,
    )
    for place in range(COMMON, len(row), EACH):
        cost, budget, predicted_cost, certified, dual = row[place : place + EACH]
        one = point.constraints.add(cost=cost, cost_budget=budget, predicted_cost=predicted_cost, dual_variable=dual)
        if not math.isnan(certified):
            one.certified_cost = certified
    return point
