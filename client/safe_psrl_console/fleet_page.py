"""The page `/`: every agent, and one line that says whether the constraints hold."""

import dataclasses
from typing import Any

from nicegui import ui
from nicegui.element import Element

from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.frame import framed
from safe_psrl_console.live import Live

UPDATE_SECONDS = 1.0


class FleetView(Element, component="fleet_view.js"):
    """Keeps one browser's table up to date: sends what changed since it was last sent something."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self.props["target"] = live.client.target
        self._fleet = live.fleet
        self._sent: tuple[int, bool, bool] | None = None
        self.on("ready", self._begin)

    def push(self) -> None:
        fleet = self._fleet
        now = (fleet.revision, fleet.connected, fleet.loaded)
        if self._sent is None or self._sent == now:
            return
        self._send(self._sent[0])
        self._sent = now

    def _begin(self) -> None:
        """The browser shows the page, for the first time or after it was away."""
        self._send(0, anew=True)
        self._sent = (self._fleet.revision, self._fleet.connected, self._fleet.loaded)

    def _send(self, revision: int, *, anew: bool = False) -> None:
        fleet = self._fleet
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
    """What the table shows of an agent: of several constraints, the one nearest to not holding."""
    constraint, standing = agent.worst()
    status, recent = agent.status, agent.recent()
    return {
        "name": agent.name,
        "condition": agent.condition,
        "reason": status.condition_reason,
        "episode": status.episode,
        "level": standing.level,
        "constraint": standing.constraint,
        "several": agent.num_constraints > 1,
        "cost": standing.cost,
        "recent": standing.recent_cost,
        "mean": standing.mean_cost,
        "budget": standing.budget,
        "share": standing.share if standing.known else -1,
        "spark": agent.spark(constraint),
        "reward": recent.reward if recent else None,
        "dual": status.constraints[constraint].dual_variable if status.constraints else None,
    }


def fleet_page(live: Live) -> None:
    with framed(live):
        view = FleetView(live)
    ui.timer(UPDATE_SECONDS, view.push)
