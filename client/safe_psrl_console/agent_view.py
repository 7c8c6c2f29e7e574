"""One readable agent: its budgets, learning curves, policy, posterior and events."""

import time
from datetime import UTC, datetime
from typing import Final

from safe_psrl_console.agent_actions import AgentActions
from safe_psrl_console.agent_charts import AgentCharts
from safe_psrl_console.agent_maps import AgentMaps
from safe_psrl_console.budget_status import BudgetStatus
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import Gauge, Text, block
from safe_psrl_console.fleet import Event, WatchedAgent

SHOWN_EVENTS: Final = 12
SIGNS: Final = {
    "over": "✕",
    "quarantined": "✕",
    "lost": "✕",
    "deleted": "✕",
    "paused": "❚❚",
    "within": "✓",
    "resumed": "▶",
    "restored": "✓",
    "appeared": "+",
}


class AgentView:
    """The content of the page of a readable agent."""

    def __init__(self, connection: Connection, agent: WatchedAgent) -> None:
        self._connection = connection
        with block("header", "agent-head"):
            with block("div"):
                Text("h1", agent.name)
                self._condition = Text("span", agent.condition, "condition")
                self._reason = Text("span", "", "why")
            self._actions = AgentActions(connection, agent.name)
        with block("div", "gauges"):
            self._gauges = [_ConstraintCard(one.name) for one in agent.status.constraints]
            self._facts = _Facts()
        self._charts = AgentCharts(agent)
        self.maps = AgentMaps(connection, agent.name)
        with self.maps.side, block("section", "card events"):
            Text("h2", "Recent events")
            self._events = block("ol")
        self._shown_events: list[Event] | None = None

    def show(self, agent: WatchedAgent, *, changed: bool) -> None:
        self._condition.set_text(agent.condition)
        self._condition.classes(replace=f"condition is-{agent.condition}")
        self._reason.set_text(agent.status.condition_reason)
        self._actions.show(agent)
        self._show_events(self._connection.fleet.events_of(agent.name)[:SHOWN_EVENTS])
        if not changed:
            return
        for i, budget_status in enumerate(agent.budget_statuses()):
            self._gauges[i].show(agent, i, budget_status)
        self._facts.show(agent)
        self._charts.show(agent)

    def _show_events(self, events: list[Event]) -> None:
        if events == self._shown_events:
            return
        self._shown_events = events
        self._events.clear()
        with self._events:
            for event in events:
                with block("li", f"is-{event.kind}"):
                    Text("i", SIGNS.get(event.kind, "•")).props("aria-hidden=true")
                    Text("span", event.text)
                    Text("time", time.strftime("%H:%M:%S", time.localtime(event.at)))
            if not events:
                Text("li", "No events since the console started.", "none")


class _ConstraintCard:
    """One constraint's gauge and its text."""

    def __init__(self, name: str) -> None:
        with block("section", "card constraint", data_constraint=name):
            Text("h2", name)
            self._gauge = Gauge()
            self._recent = Text("p")
            self._sum = Text("p")

    def show(self, agent: WatchedAgent, i: int, budget_status: BudgetStatus) -> None:
        status = agent.status.constraints[i]
        self._gauge.show(budget_status.level, budget_status.cost, budget_status.budget, budget_status.share)
        if not budget_status.known:
            self._recent.set_text(f"The budget is {budget_status.budget:g} an episode.")
            return
        self._recent.set_text(
            f"{budget_status.mean_cost:.3f} in the mean of all episodes, {budget_status.recent_cost:.3f} in the recent ones."
        )
        unspent = -status.constraint_regret
        reserve = f"{unspent:,.1f} unspent in all" if unspent >= 0 else f"{-unspent:,.1f} overspent in all"
        self._sum.set_text(f"{reserve}; {status.violations:,} of {agent.status.completed_episodes:,} episodes were above.")


class _Facts:
    """Figures of the agent as a whole."""

    NAMES: Final = ("episodes", "open", "steps learned", "overridden", "visited", "reward, recent", "latest plan", "created")

    def __init__(self) -> None:
        with block("dl", "card facts"):
            self._values = {name: _fact(name) for name in self.NAMES}

    def show(self, agent: WatchedAgent) -> None:
        status, recent = agent.status, agent.recent()
        values = (
            f"{status.episode:,}",
            f"{len(status.open_episodes):,}",
            f"{status.transitions:,}",
            f"{status.overridden_actions:,}",
            f"{status.visited_ratio:.0%}",
            f"{recent.reward:,.3f}" if recent else "-",
            f"{1000 * status.plan_seconds:,.1f} ms",
            f"{datetime.fromtimestamp(status.created_micros / 1e6, UTC):%Y-%m-%d}",
        )
        for name, value in zip(self.NAMES, values, strict=True):
            self._values[name].set_text(value)


def _fact(name: str) -> Text:
    with block("div"):
        Text("dt", name)
        return Text("dd", "-")
