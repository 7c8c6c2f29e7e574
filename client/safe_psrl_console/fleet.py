"""The state of all agents, folded from the replies of `WatchAgents`, with histories and events. No I/O, no clock."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from safe_psrl_console.budget_status import (
    CLEARLY_WITHIN,
    FEWEST_EPISODES,
    BudgetStatus,
    Headline,
    Level,
    budget_statuses,
    headline,
)
from safe_psrl_console.history import History, Interval, Point, between, intervals, origin, point_of, standard_errors
from safe_psrl_proto.v1 import admin_pb2

RECENT_EPISODES: Final = 100  # at least, in a recent mean
EVENTS: Final = 1_000
REMEMBERED_DELETIONS: Final = 1_000
RECENT_PARTS: Final = 20  # of a recent mean, for its standard error
SPARK_POINTS: Final = 32

CONDITIONS: Final = {
    admin_pb2.AGENT_CONDITION_ACTIVE: "active",
    admin_pb2.AGENT_CONDITION_PAUSED: "paused",
    admin_pb2.AGENT_CONDITION_QUARANTINED: "quarantined",
}


class Event(NamedTuple):
    """A change that matters to an operator."""

    at: float
    agent: str  # empty: the connection
    kind: str
    text: str


class WatchedAgent:
    """One agent: its latest status and its history."""

    def __init__(self, status: admin_pb2.AgentStatus) -> None:
        self.status = status
        self.history = History()
        self.revision = 0
        self.was_over = False
        self._budget_statuses: list[BudgetStatus] | None = None
        if self.num_constraints:
            self.history.add(origin(self.num_constraints))

    @property
    def name(self) -> str:
        return self.status.agent

    @property
    def condition(self) -> str:
        return CONDITIONS.get(self.status.condition, "unknown")

    @property
    def num_constraints(self) -> int:
        return len(self.status.constraints)

    @property
    def budgets(self) -> list[float]:
        return [one.cost_budget for one in self.status.constraints]

    def update(self, status: admin_pb2.AgentStatus) -> None:
        self.status = status
        self._budget_statuses = None
        if self.num_constraints:
            self.history.add(point_of(status))

    def is_replaced_by(self, status: admin_pb2.AgentStatus) -> bool:
        """Whether it was deleted and created again under its name, or damaged: sums restart."""
        return (
            status.created_micros != self.status.created_micros
            or status.completed_episodes < self.status.completed_episodes
            or len(status.constraints) != self.num_constraints
        )

    def recent(self) -> Interval | None:
        """Over the last `RECENT_EPISODES` or a few more; over all episodes if that many were not watched."""
        latest = self.history.latest
        return between(self._before_recent(latest), latest, self.budgets) if latest else None

    def budget_statuses(self) -> list[BudgetStatus]:
        """One for each constraint; computed once per status."""
        if self._budget_statuses is None:
            self._budget_statuses = self._judge()
        return self._budget_statuses

    def worst(self) -> tuple[int, BudgetStatus]:
        """The constraint nearest to its violation, with its index."""
        statuses = self.budget_statuses() or [BudgetStatus("", 0.0, 0.0, 0.0, known=False)]
        return max(enumerate(statuses), key=lambda one: one[1].share)

    def spark(self, constraint: int) -> list[int]:
        """Mean costs of the recent intervals, in percent of the budget."""
        budget = self.budgets[constraint] if self.num_constraints else 0.0
        if budget <= 0:
            return []
        points = [point for point in self.history.thinned(SPARK_POINTS) if point.completed]
        return [round(100 * one.costs[constraint] / budget) for one in intervals(points, self.budgets)]

    def _judge(self) -> list[BudgetStatus]:
        recent = self.recent()
        if recent is None or self.status.completed_episodes < FEWEST_EPISODES:
            return budget_statuses(self.status)
        first = self._before_recent(self.history.recent[-1]).completed
        points = [point for point in self.history.recent if point.completed >= first]
        few = [*points[: -1 : 1 + len(points) // RECENT_PARTS], points[-1]]
        errors = standard_errors(list(intervals(few, self.budgets)), recent)
        return [
            BudgetStatus(one.name, one.cost_budget, one.mean_cost, recent.costs[i], errors[i])
            for i, one in enumerate(self.status.constraints)
        ]

    def _before_recent(self, latest: Point) -> Point:
        """The last point that `RECENT_EPISODES` were completed after, or else the first."""
        before = latest.completed - RECENT_EPISODES
        return next((point for point in reversed(self.history.recent) if point.completed <= before), self.history.whole()[0])


class Fleet:
    """Every agent by name. `revision` grows with each change, so that a page can request only what changed."""

    def __init__(self) -> None:
        self.agents: dict[str, WatchedAgent] = {}
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.revision = 0
        self.connected = False
        self.loaded = False  # the list of agents was received at least once
        self.since: float | None = None  # the last change of `connected`
        self.failure = ""
        self._deleted: dict[str, int] = {}

    def begin(self, reply: admin_pb2.WatchAgentsResponse, at: float) -> None:
        """The first reply of a connection: all agents."""
        if self.loaded and not self.connected:
            self.events.append(Event(at, "", "restored", "Connected again"))
        first_ever, self.loaded = not self.loaded, True
        self.connected, self.since, self.failure = True, at, ""
        named = {status.agent for status in reply.agents}
        self._delete([name for name in self.agents if name not in named], at)
        self._fold(reply.agents, at, announce=not first_ever)

    def apply(self, reply: admin_pb2.WatchAgentsResponse, at: float) -> None:
        """A later reply: what changed."""
        self._delete(reply.deleted, at)
        self._fold(reply.agents, at, announce=True)

    def lose(self, reason: str, at: float) -> None:
        """The connection failed, or could not be made."""
        if self.connected:
            self.events.append(Event(at, "", "lost", f"Connection lost: {reason}"))
        if self.connected or self.since is None:
            self.since = at
        self.connected, self.failure = False, reason

    def changed_since(self, revision: int) -> list[WatchedAgent]:
        return [agent for agent in self.agents.values() if agent.revision > revision]

    def deleted_since(self, revision: int) -> list[str]:
        return [name for name, at_revision in self._deleted.items() if at_revision > revision]

    def headline(self) -> Headline:
        return headline((agent.name, agent.worst()[1]) for agent in self.agents.values())

    def events_of(self, agent: str) -> list[Event]:
        """Newest first, those of the connection among them."""
        return [event for event in reversed(self.events) if event.agent in {agent, ""}]

    def _fold(self, statuses: Iterable[admin_pb2.AgentStatus], at: float, *, announce: bool) -> None:
        for status in statuses:
            known = self.agents.get(status.agent)
            if known is None or known.is_replaced_by(status):
                if announce:
                    self.events.append(Event(at, status.agent, "appeared", "Created" if known is None else "Created again"))
                known = self.agents[status.agent] = WatchedAgent(status)
                self._deleted.pop(status.agent, None)
            before = known.condition
            known.update(status)
            self.revision += 1
            known.revision = self.revision
            if known.condition != before:
                self.events.append(_condition_event(known, at))
            self._watch_level(known, at)

    def _watch_level(self, agent: WatchedAgent, at: float) -> None:
        _, budget_status = agent.worst()
        cost = f"{budget_status.cost:.2f} of {budget_status.budget:g}"
        if budget_status.level is Level.OVER and not agent.was_over:
            agent.was_over = True
            self.events.append(Event(at, agent.name, "over", f"Over budget: {budget_status.constraint} at {cost}"))
        elif agent.was_over and budget_status.share < CLEARLY_WITHIN:
            agent.was_over = False
            self.events.append(Event(at, agent.name, "within", f"Within budget again: {budget_status.constraint} at {cost}"))

    def _delete(self, names: Iterable[str], at: float) -> None:
        for name in names:
            if self.agents.pop(name, None) is not None:
                self.revision += 1
                self._deleted[name] = self.revision
                if len(self._deleted) > REMEMBERED_DELETIONS:
                    del self._deleted[next(iter(self._deleted))]
                self.events.append(Event(at, name, "deleted", "Deleted"))


def _condition_event(agent: WatchedAgent, at: float) -> Event:
    reason = f": {agent.status.condition_reason}" if agent.status.condition_reason else ""
    if agent.condition == "active":
        return Event(at, agent.name, "resumed", "Resumed")
    return Event(at, agent.name, agent.condition, f"{agent.condition.capitalize()}{reason}")
