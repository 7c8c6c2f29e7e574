"""The page `/agent/NAME`: one agent, or a message that it is loading, missing or quarantined."""

from typing import Final

from nicegui import ui
from nicegui.element import Element

from safe_psrl_console.agent_view import AgentView
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import Text, block
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.layout import page_layout

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
        self._state = ""
        self._seen = -1
        self._view: AgentView | None = None

    def show(self) -> None:
        fleet = self._connection.fleet
        agent = fleet.agents.get(self._name)
        state = _state_of(agent, loaded=fleet.loaded)
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
            await self._view.maps.refresh_if_due(agent.status.version)

    def _build(self, agent: WatchedAgent | None) -> None:
        if self._state == "waiting":
            with block("section", "loading", aria_busy="true"):
                for _ in range(5):
                    block("div", "bone")
        elif agent is None:
            _show_message(
                f"There is no agent {self._name}", "It was deleted, or has another name. If it is created, it appears here."
            )
        elif self._state == "quarantined":
            _show_message(
                f"{agent.name} is quarantined",
                f"{agent.status.condition_reason} The other agents are not affected. See docs/operations.md.",
            )
        else:
            self._view = AgentView(self._connection, agent)


def _state_of(agent: WatchedAgent | None, *, loaded: bool) -> str:
    if agent is None:
        return "missing" if loaded else "waiting"
    return "quarantined" if agent.condition == "quarantined" else f"there since {agent.status.created_micros}"


def _show_message(title: str, text: str) -> None:
    with block("section", "empty", data_testid="message"):
        Text("h1", title)
        Text("p", text)
        Text("a", "Show all agents").props('href="/"')
