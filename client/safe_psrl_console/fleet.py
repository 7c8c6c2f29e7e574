"""The state of all agents, folded from the replies of `WatchAgents`. No I/O, no clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from safe_psrl_console.budget_status import BudgetStatus, Headline, budget_statuses, headline, worst_status
from safe_psrl_proto.v1 import admin_pb2

REMEMBERED_DELETIONS: Final = 1_000
MOST_WANTED: Final = 100
DRIFT_SHOWN_SECONDS: Final = 24 * 3600.0  # after a detection

CONDITIONS: Final = {
    admin_pb2.AGENT_CONDITION_ACTIVE: "active",
    admin_pb2.AGENT_CONDITION_PAUSED: "paused",
    admin_pb2.AGENT_CONDITION_QUARANTINED: "quarantined",
}


@dataclass(frozen=True)
class WatchedAgent:
    """The latest status of one agent, and the fleet's revision that brought it."""

    status: admin_pb2.AgentStatus
    revision: int

    @property
    def name(self) -> str:
        return self.status.agent

    @property
    def condition(self) -> str:
        return CONDITIONS.get(self.status.condition, "unknown")

    @cached_property
    def budget_statuses(self) -> list[BudgetStatus]:
        return budget_statuses(self.status)

    @cached_property
    def worst(self) -> BudgetStatus:
        return worst_status(self.budget_statuses)

    def has_drifted(self, now: float) -> bool:
        """Whether drift was detected within the last day. `now`: seconds since 1970."""
        return self.status.drift_micros > 0 and now - self.status.drift_micros / 1e6 < DRIFT_SHOWN_SECONDS


class Fleet:
    """Every agent by name. `revision` grows with each change, so that a page can request only what changed."""

    def __init__(self) -> None:
        self.agents: dict[str, WatchedAgent] = {}
        self.revision = 0
        self.connected = False
        self.loaded = False  # the list of agents was received at least once
        self.since: float | None = None  # the last change of `connected`
        self.failure = ""
        self.shown = 0  # of a fleet too large to watch: how many agents are, those with the greatest share of their budget
        self.wanted: dict[str, None] = {}  # of a large fleet: other agents whose pages were opened, latest last
        self._found: set[str] = set()  # those of them that were looked for
        self._deleted: dict[str, int] = {}

    def begin(self, reply: admin_pb2.WatchAgentsResponse, at: float) -> None:
        """The first reply of a connection: all agents."""
        self.loaded = True
        self.connected, self.since, self.failure = True, at, ""
        named = {status.agent for status in reply.agents}
        self._delete([name for name in self.agents if name not in named])
        self._fold(reply.agents)

    def begin_large(self, statuses: Sequence[admin_pb2.AgentStatus], wanted: Iterable[str], shown: int, at: float) -> None:
        """The `shown` agents of a large fleet that are closest to their budgets, and those of `wanted` that exist."""
        self.shown, self._found = shown, set(wanted)
        self.begin(admin_pb2.WatchAgentsResponse(agents=statuses), at)

    def want(self, name: str) -> None:
        """A page of the agent was opened."""
        self.wanted.pop(name, None)
        self.wanted[name] = None
        if len(self.wanted) > MOST_WANTED:
            del self.wanted[next(iter(self.wanted))]

    def knows(self, name: str) -> bool:
        """Whether the agent would be there if it existed."""
        return self.loaded and (not self.shown or name in self._found or name in self.agents)

    def apply(self, reply: admin_pb2.WatchAgentsResponse) -> None:
        """A later reply: what changed."""
        self._delete(reply.deleted)
        self._fold(reply.agents)

    def lose(self, reason: str, at: float) -> None:
        """The connection failed, or could not be made."""
        if self.connected or self.since is None:
            self.since = at
        self.connected, self.failure = False, reason

    def changed_since(self, revision: int) -> list[WatchedAgent]:
        return [agent for agent in self.agents.values() if agent.revision > revision]

    def deleted_since(self, revision: int) -> list[str]:
        return [name for name, at_revision in self._deleted.items() if at_revision > revision]

    def headline(self) -> Headline:
        found = headline((agent.name, agent.worst) for agent in self.agents.values())
        if not self.shown:
            return found
        of_many = f"Only the {self.shown:,} agents with the greatest share of their budget are shown"
        return replace(found, detail=f"{found.detail}. {of_many}" if found.detail else of_many)

    def _fold(self, statuses: Iterable[admin_pb2.AgentStatus]) -> None:
        for status in statuses:
            known = self.agents.get(status.agent)
            if known is not None and known.status == status:
                continue
            self.revision += 1
            self.agents[status.agent] = WatchedAgent(status, self.revision)
            self._deleted.pop(status.agent, None)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            if self.agents.pop(name, None) is not None:
                self.revision += 1
                self._deleted[name] = self.revision
                if len(self._deleted) > REMEMBERED_DELETIONS:
                    del self._deleted[next(iter(self._deleted))]
