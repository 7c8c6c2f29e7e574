"""The page `/`: every agent, and a headline that states whether the constraints hold."""

import dataclasses
import time
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
            "rows": [row_of(agent, time.time()) for agent in fleet.changed_since(revision)],
            "deleted": fleet.deleted_since(revision),
            "headline": dataclasses.asdict(fleet.headline()) if fleet.loaded else WAITING,
            "loaded": fleet.loaded,
            "stale": not fleet.connected,
        }
        self.run_method("apply", update)


WAITING = {"level": "unknown", "title": "Waiting for the service", "detail": "", "worst": "", "lead": ""}


def row_of(agent: WatchedAgent, now: float) -> dict[str, Any]:
    """The row of an agent, with its worst constraint."""
    status, worst = agent.status, agent.worst
    return {
        "name": agent.name,
        "condition": agent.condition,
        "reason": status.condition_reason,
        "drift": agent.has_drifted(now),
        "method": status.method,
        "episode": status.episode,
        "level": worst.level,
        "constraint": worst.constraint,
        "several": len(status.constraints) > 1,
        "recentEpisodes": status.recent_episodes,
        "cost": worst.cost,
        "budget": worst.budget,
        "share": worst.share if worst.known else -1,
        "predicted": worst.predicted_cost if status.episode else None,
        "reward": status.recent_reward if status.recent_episodes else None,
        "predictedReward": status.predicted_reward,
    }


def fleet_page(connection: Connection) -> None:
    with page_layout(connection):
        view = FleetView(connection)
    ui.timer(UPDATE_SECONDS, view.push)
