"""The page `/`: every agent, and a headline that states whether the constraints hold."""

import dataclasses
from typing import Any

from nicegui import ui
from nicegui.element import Element

from safe_psrl_console.connection import Connection
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.layout import page_layout

UPDATE_SECONDS = 1.0


class FleetView(Element, component="fleet_view.js"):
    """One browser's table: sends the changes since the last update."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.props["target"] = connection.client.target
        self._fleet = connection.fleet
        self._sent: tuple[int, bool, bool] | None = None
        self.on("ready", self._begin)

    def push(self) -> None:
        if self._sent is not None and self._sent != self._current():
            self._send(self._sent[0])

    def _begin(self) -> None:
        """The browser has loaded the page or reconnected."""
        self._send(0, anew=True)

    def _current(self) -> tuple[int, bool, bool]:
        return self._fleet.revision, self._fleet.connected, self._fleet.loaded

    def _send(self, revision: int, *, anew: bool = False) -> None:
        fleet, self._sent = self._fleet, self._current()
        update = {
            "anew": anew,
            "rows": [row_of(agent) for agent in fleet.changed_since(revision)],
            "deleted": fleet.deleted_since(revision),
            "headline": dataclasses.asdict(fleet.headline()) if fleet.loaded else WAITING,
            "loaded": fleet.loaded,
            "stale": not fleet.connected,
        }
        self.run_method("apply", update)


WAITING = {"level": "unknown", "title": "Waiting for the service", "detail": "", "worst": "", "lead": ""}


def row_of(agent: WatchedAgent) -> dict[str, Any]:
    """The row of an agent, with its worst constraint."""
    constraint, budget_status = agent.worst()
    status, recent = agent.status, agent.recent()
    return {
        "name": agent.name,
        "condition": agent.condition,
        "reason": status.condition_reason,
        "method": status.method,
        "episode": status.episode,
        "level": budget_status.level,
        "constraint": budget_status.constraint,
        "several": agent.num_constraints > 1,
        "cost": budget_status.cost,
        "recent": budget_status.recent_cost,
        "mean": budget_status.mean_cost,
        "budget": budget_status.budget,
        "share": budget_status.share if budget_status.known else -1,
        "spark": agent.spark(constraint),
        "reward": recent.reward if recent else None,
    }


def fleet_page(connection: Connection) -> None:
    with page_layout(connection):
        view = FleetView(connection)
    ui.timer(UPDATE_SECONDS, view.push)
