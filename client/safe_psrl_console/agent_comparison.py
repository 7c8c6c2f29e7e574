"""The card that compares an agent in shadow with the controller in charge."""

import time
from typing import Final

from safe_psrl_client import AsyncClient, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.controls import Text, block
from safe_psrl_console.number_text import estimate_text
from safe_psrl_proto.v1 import admin_pb2

INTERVAL_SECONDS: Final = 10.0  # a comparison takes some times as long as a plan
SHADOW: Final = "shadow"
PROMOTE: Final = admin_pb2.PROMOTION_VERDICT_PROMOTE


class ComparisonCard:
    """Shown while the agent is in shadow. Requested again when more episodes are completed, at most once per interval."""

    def __init__(self, client: AsyncClient, agent: str) -> None:
        self._client, self._agent = client, agent
        self._episodes, self._due = -1, 0.0
        with block("section", "card comparison", data_testid="comparison") as self._card:
            Text("h2", "Beside the controller in charge")
            self._verdict = Text("p", "Comparing …")
            self._table = block("table", "previews")
        self._card.set_visibility(False)

    async def refresh_if_due(self, status: admin_pb2.AgentStatus) -> None:
        self._card.set_visibility(status.mode == SHADOW)
        now = time.monotonic()
        if status.mode != SHADOW or status.shadow_episodes == self._episodes or now < self._due:
            return
        self._due = now + INTERVAL_SECONDS
        try:
            found = await self._client.compare_agent(self._agent)
        except SafePsrlClientError as error:
            self._verdict.set_text(f"The comparison failed: {visible(str(error))}")
            return
        self._episodes = found.shadow_episodes
        self._verdict.set_text(f"The agent {'' if found.verdict == PROMOTE else 'is '}{visible(found.verdict_text)}.")
        self._table.clear()
        with self._table:
            for tag, *cells in comparison_rows(found):
                with block("tr"):
                    for cell in cells:
                        Text(tag, cell)


def comparison_rows(found: admin_pb2.CompareAgentResponse) -> list[tuple[str, ...]]:
    """Rows of the table, each with the tag of its cells."""
    incumbent = found.incumbent if found.HasField("incumbent") else None
    continuing = found.HasField("shadow_steps")
    seen = f"{found.shadow_steps:,} steps" if continuing else f"{found.shadow_episodes:,} episodes"
    rows: list[tuple[str, ...]] = [
        ("th", "Per step" if continuing else "Of an episode", f"controller, {seen}", "next plan, as learned", "budget"),
        ("td", "reward", _shown(incumbent and incumbent.reward), _shown(found.plan.reward), ""),
    ]
    for i, name in enumerate(found.constraint_names):
        costs = _shown(incumbent and incumbent.costs[i]), _shown(found.plan.costs[i])
        rows.append(("td", f"cost of {visible(name)}", *costs, f"{found.cost_budgets[i]:.4g}"))
        if found.certified_costs:
            rows.append(("td", "at most, certified", "", f"{found.certified_costs[i]:.4g}", ""))
    if found.HasField("gain"):
        rows.append(("td", "gain", "", _shown(found.gain), ""))
    return rows


def _shown(value: admin_pb2.Estimate | None) -> str:
    return "-" if value is None else estimate_text(value.mean, value.error)
