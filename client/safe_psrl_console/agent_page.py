"""The page `/agent/NAME`: one agent, live; or that it is waited for, is not there, or cannot be read."""

from typing import Final

from nicegui import ui
from nicegui.element import Element

from safe_psrl_console.agent_view import AgentView
from safe_psrl_console.controls import Words, block
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.frame import framed
from safe_psrl_console.live import Live

UPDATE_SECONDS: Final = 1.0


def agent_page(live: Live, name: str) -> None:
    ui.page_title(f"{name} · Safe PSRL")
    with framed(live):
        with block("nav", aria_label="Where you are"):
            Words("a", "← All agents", "back").props('href="/"')
        page = _AgentPage(live, name, block("div", "agent"))
    page.show()
    ui.timer(UPDATE_SECONDS, page.update)


class _AgentPage:
    """What is shown is made anew when the agent comes or goes, and updated in place while it is there."""

    def __init__(self, live: Live, name: str, place: Element) -> None:
        self._live, self._name, self._place = live, name, place
        self._state = ""
        self._seen = -1
        self._view: AgentView | None = None

    def show(self) -> None:
        fleet = self._live.fleet
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
        agent = self._live.fleet.agents.get(self._name)
        if self._view and agent and self._live.fleet.connected:
            await self._view.maps.look(agent.status.version)

    def _build(self, agent: WatchedAgent | None) -> None:
        if self._state == "waiting":
            with block("section", "loading", aria_busy="true"):
                for _ in range(5):
                    block("div", "bone")
        elif agent is None:
            _say(
                f"There is no agent {self._name}", "It was deleted, or is called otherwise. If it is created, it appears here."
            )
        elif self._state == "quarantined":
            _say(
                f"{agent.name} is quarantined",
                f"{agent.status.condition_reason} The other agents go on. See docs/operations.md.",
            )
        else:
            self._view = AgentView(self._live, agent)


def _state_of(agent: WatchedAgent | None, *, loaded: bool) -> str:
    if agent is None:
        return "missing" if loaded else "waiting"
    return "quarantined" if agent.condition == "quarantined" else f"there since {agent.status.created_micros}"


def _say(title: str, text: str) -> None:
    with block("section", "empty", data_testid="message"):
        Words("h1", title)
        Words("p", text)
        Words("a", "Show all agents").props('href="/"')
