"""The page `/agent/NAME`: an agent's budgets, learning curves, policy, posterior and history, or why they are not shown."""

import time
from typing import Final

from nicegui import ui
from nicegui.element import Element

from safe_psrl_console.agent_actions import AgentActions
from safe_psrl_console.agent_charts import AgentCharts
from safe_psrl_console.agent_comparison import ComparisonCard
from safe_psrl_console.agent_history import AgentHistory
from safe_psrl_console.agent_log import DriftBanner, LogCard
from safe_psrl_console.agent_maps import AgentMaps
from safe_psrl_console.budget_status import FEWEST_EPISODES, BudgetStatus, rate_of, unit_of
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import Gauge, Text, block
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.layout import page_layout
from safe_psrl_proto.v1 import model_pb2

UPDATE_SECONDS: Final = 1.0


def agent_page(connection: Connection, name: str) -> None:
    ui.page_title(f"{name} · Safe PSRL")
    with page_layout(connection):
        with block("nav", aria_label="Breadcrumb"):
            Text("a", "← All agents", "back").props('href="/"')
        page = _AgentPage(connection, name, block("div", "agent"))
    page.show()
    ui.timer(UPDATE_SECONDS, page.update)


class _AgentPage:
    """The content is rebuilt when the agent appears or disappears, and updated in place otherwise."""

    def __init__(self, connection: Connection, name: str, place: Element) -> None:
        self._connection, self._name, self._place = connection, name, place
        connection.fleet.want(name)
        self._state = ""
        self._seen = -1
        self._view: _AgentView | None = None

    def show(self) -> None:
        fleet = self._connection.fleet
        agent = fleet.agents.get(self._name)
        state = _state_of(agent, loaded=fleet.knows(self._name))
        if state != self._state:
            self._state, self._view, self._seen = state, None, -1
            self._place.clear()
            with self._place:
                self._build(agent)
        self._place.classes(replace="agent" if fleet.connected else "agent stale")
        if self._view and agent:
            self._view.show(agent, changed=agent.revision != self._seen)
            self._seen = agent.revision

    async def update(self) -> None:
        self.show()
        agent = self._connection.fleet.agents.get(self._name)
        if self._view and agent and self._connection.fleet.connected:
            await self._view.refresh(agent)

    def _build(self, agent: WatchedAgent | None) -> None:
        if self._state == "waiting":
            with block("section", "loading", aria_busy="true"):
                for _ in range(5):
                    block("div", "bone")
        elif agent is None:
            _show_message(
                f"There is no agent {self._name}", "It was deleted, or the name is wrong. If it is created, it appears here."
            )
        elif self._state == "quarantined":
            _show_message(
                f"{agent.name} is quarantined",
                f"{agent.status.condition_reason} The other agents are not affected. See docs/operations.md.",
            )
        else:
            self._view = _AgentView(self._connection, agent)


def _state_of(agent: WatchedAgent | None, *, loaded: bool) -> str:
    if agent is None:
        return "missing" if loaded else "waiting"
    if agent.condition == "quarantined":
        return "quarantined"
    status = agent.status
    return f"created {status.created_micros}, {status.method}, drift {status.HasField('drift_statistic')}"


def _show_message(title: str, text: str) -> None:
    with block("section", "empty", data_testid="message"):
        Text("h1", title)
        Text("p", text)
        Text("a", "Show all agents").props('href="/"')


class _AgentView:
    """The content of the page, if the agent is readable."""

    def __init__(self, connection: Connection, agent: WatchedAgent) -> None:
        self._history = AgentHistory(connection.client, agent.name)
        with block("header", "agent-head"):
            with block("div"):
                Text("h1", agent.name)
                self._condition = Text("span", agent.condition, "condition")
                Text("span", f"method {agent.status.method}", "why")
                self._mode = Text("span", "", "why")
                self._reason = Text("span", "", "why")
            self._actions = AgentActions(connection, agent)
        self._drift = DriftBanner()
        self._comparison = ComparisonCard(connection.client, agent.name)
        with block("div", "gauges"):
            self._gauges = [_ConstraintCard(one.name) for one in agent.status.constraints]
            self._facts = _Facts(unit_of(agent.status))
        self._charts = AgentCharts(agent, self._history)
        self._maps = AgentMaps(connection, agent.name)
        with self._maps.side:
            self._log = LogCard()

    def show(self, agent: WatchedAgent, *, changed: bool) -> None:
        self._condition.set_text(agent.condition)
        self._condition.classes(replace=f"condition is-{agent.condition}")
        self._mode.set_text("in shadow: it proposes, and another controller acts" if agent.status.mode == "shadow" else "")
        self._reason.set_text(agent.status.condition_reason)
        self._actions.show(agent)
        if not changed:
            return
        for i, budget_status in enumerate(agent.budget_statuses):
            self._gauges[i].show(agent, i, budget_status)
        self._facts.show(agent)
        self._charts.show_notes(agent)

    async def refresh(self, agent: WatchedAgent) -> None:
        """Request what the status does not have, where it is due."""
        if await self._history.refresh_if_due(agent.status.version):
            self._charts.show(agent)
            self._log.show(self._history.entries)
        detection = self._history.detection if agent.has_drifted(time.time()) else None
        self._drift.show(agent, detection)
        self._maps.mark(detection.rows if detection else frozenset())
        await self._maps.refresh_if_due(agent.status.version)
        await self._comparison.refresh_if_due(agent.status)


CERTIFICATES: Final = {
    model_pb2.CERTIFICATE_CONFIDENCE: "Certified: the plan's expected cost is at most {:.3f}, with the agent's confidence.",
    model_pb2.CERTIFICATE_CERTAIN: "Certified: the plan's expected cost is at most {:.3f}, whatever the environment does.",
    model_pb2.CERTIFICATE_NONE: "Not certified: no policy is known to keep the budget; the plan's bound is {:.3f}.",
}


class _ConstraintCard:
    """One constraint's gauge and its text."""

    def __init__(self, name: str) -> None:
        with block("section", "card constraint", data_constraint=name):
            Text("h2", name)
            self._gauge = Gauge()
            self._recent = Text("p")
            self._sum = Text("p")
            self._certificate = Text("p")

    def show(self, agent: WatchedAgent, i: int, budget_status: BudgetStatus) -> None:
        status, episodes = agent.status.constraints[i], agent.status.recent_episodes
        units = f"{unit_of(agent.status)}s"
        if status.HasField("certified_cost"):
            self._certificate.set_text(CERTIFICATES[agent.status.certificate].format(status.certified_cost))
        self._gauge.show(budget_status)
        predicted = f" The latest plan predicts {status.predicted_cost:.3f}." if agent.status.episode else ""
        if not budget_status.known:
            done = f" {agent.status.completed_episodes} of {FEWEST_EPISODES} {units} are completed."
            self._recent.set_text(f"The budget is {status.cost_budget:g} per {rate_of(agent.status)}.{predicted}{done}")
            return
        changed = f" The budget is {status.cost_budget:g} now." if budget_status.budget != status.cost_budget else ""
        self._recent.set_text(f"Mean of the last {episodes:,} {units}, and of their budgets.{changed}{predicted}")
        unspent = -status.constraint_regret
        reserve = f"{unspent:,.1f} unspent in total" if unspent >= 0 else f"{-unspent:,.1f} overspent in total"
        self._sum.set_text(
            f"All {units}: mean {status.mean_cost:.3f}; {reserve}; "
            f"{status.violations:,} of {agent.status.completed_episodes:,} were above the budget."
        )


class _Facts:
    """Figures of the agent as a whole."""

    NAMES: Final = (
        "open",
        "steps learned",
        "overridden",
        "visited",
        "reward, recent",
        "reward, predicted",
        "latest plan",
    )

    def __init__(self, unit: str) -> None:
        with block("dl", "card facts"):
            self._values = [_fact(name) for name in (f"{unit}s", *self.NAMES)]

    def show(self, agent: WatchedAgent) -> None:
        status = agent.status
        values = (
            f"{status.episode:,}",
            f"{len(status.open_episodes):,}",
            f"{status.transitions:,}",
            f"{status.overridden_actions:,}",
            f"{status.visited_ratio:.0%}",
            f"{status.recent_reward:,.3f}" if status.recent_episodes else "-",
            f"{status.predicted_reward:,.3f}" if status.episode else "-",
            f"{1000 * status.plan_seconds:,.1f} ms",
        )
        for fact, value in zip(self._values, values, strict=True):
            fact.set_text(value)


def _fact(name: str) -> Text:
    with block("div"):
        Text("dt", name)
        return Text("dd", "-")
