"""An agent's history, as the service keeps it: a series by episode, and the log. Requested again when the agent changes."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from safe_psrl_client import AsyncClient, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_proto.v1 import admin_pb2, events_pb2

REFRESH_SECONDS: Final = 2.0
MOST_POINTS: Final = 128  # in a chart
KINDS: Final = {
    events_pb2.LOG_KIND_CREATED: "created",
    events_pb2.LOG_KIND_UPDATED: "updated",
    events_pb2.LOG_KIND_PAUSED: "paused",
    events_pb2.LOG_KIND_RESUMED: "resumed",
    events_pb2.LOG_KIND_IMPORTED: "imported",
    events_pb2.LOG_KIND_DRIFT_DETECTED: "drift",
    events_pb2.LOG_KIND_GUARDED: "guarded",
}
TITLES: Final = {"drift": "drift detected", "guarded": "paused by its guard"}  # of other kinds, the word itself


class Entry(NamedTuple):
    """One entry of the log; its texts have no control characters."""

    time: str
    kind: str
    episode: int
    by: str
    reason: str
    details: tuple[str, ...]
    rows: frozenset[tuple[int, int]] = frozenset()  # pairs of state and action that a detection names

    @property
    def title(self) -> str:
        """What happened, and by whom."""
        what = TITLES.get(self.kind, self.kind).capitalize()
        return f"{what} by {self.by}" if self.by else what

    @property
    def text(self) -> str:
        """All of it in one line."""
        about = "; ".join(text for text in (self.reason, *self.details) if text)
        return f"{self.time}: {self.title}" + (f": {about}" if about else "")


class AgentHistory:
    """The latest reply of `GetHistory`."""

    def __init__(self, client: AsyncClient, agent: str) -> None:
        self._client, self._agent = client, agent
        self._version = -1
        self._requested = -REFRESH_SECONDS
        self.points: list[admin_pb2.HistoryPoint] = []
        self.entries: list[Entry] = []  # oldest first
        self.failure = ""

    async def refresh_if_due(self, version: int) -> bool:
        """Request it if the agent has another version and the last request is old enough. Returns whether it did."""
        if version == self._version or time.monotonic() - self._requested < REFRESH_SECONDS:
            return False
        self._requested = time.monotonic()
        try:
            reply = await self._client.get_history(self._agent)
        except SafePsrlClientError as error:
            self.failure = f"The history cannot be read: {visible(str(error))}"
            return True
        self._version, self.failure = version, ""
        self.points, self.entries = list(reply.points), [entry_of(entry) for entry in reply.entries]
        return True

    @property
    def detection(self) -> Entry | None:
        """The latest detection of drift."""
        return next((entry for entry in reversed(self.entries) if entry.kind == "drift"), None)


def entry_of(entry: events_pb2.LogEntry) -> Entry:
    at = datetime.fromtimestamp(entry.time_micros / 1e6, UTC)
    return Entry(
        f"{at:%Y-%m-%d %H:%M:%S} UTC",
        KINDS.get(entry.kind, "other"),
        entry.episode,
        visible(entry.by),
        visible(entry.reason),
        tuple(visible(detail) for detail in entry.details),
        frozenset((row.state, row.action) for row in entry.rows),
    )


def thinned(points: Sequence[admin_pb2.HistoryPoint], most: int = MOST_POINTS) -> list[admin_pb2.HistoryPoint]:
    """At most `most` points: neighbours become one, as in the service's own series."""
    size = max(1, -(-len(points) // most))
    return [merged(points[start : start + size]) for start in range(0, len(points), size)]


def merged(group: Sequence[admin_pb2.HistoryPoint]) -> admin_pb2.HistoryPoint:
    """Means weighted by episodes; of the drift statistic the greatest, so that a peak stays; of the dual variable the last."""
    total = sum(one.episodes for one in group)
    weights = [one.episodes / total for one in group]

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    point = admin_pb2.HistoryPoint()
    point.CopyFrom(group[-1])
    point.episode, point.episodes = group[0].episode, total
    point.reward = mean([one.reward for one in group])
    point.predicted_reward = mean([one.predicted_reward for one in group])
    point.drift_statistic = max(one.drift_statistic for one in group)
    for i, constraint in enumerate(point.constraints):
        parts = [one.constraints[i] for one in group]
        constraint.cost = mean([one.cost for one in parts])
        constraint.cost_budget = mean([one.cost_budget for one in parts])
        constraint.predicted_cost = mean([one.predicted_cost for one in parts])
        constraint.ClearField("certified_cost")
        if all(one.HasField("certified_cost") for one in parts):
            constraint.certified_cost = mean([one.certified_cost for one in parts])
    return point
