"""An agent's policy and posterior as heat maps, requested seldom to keep the load on the service low."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from nicegui import ui
from nicegui.element import Element

from safe_psrl_client import NotFoundError, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.agent_explanation import ExplanationTable
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import Text, block, button
from safe_psrl_console.grids import UNNAMED, Grid, Names, policy_grid, posterior_grid, transitions_in_words, visits

REFRESH_SECONDS: Final = 5.0
Chosen = Callable[[int, int], Awaitable[None]]
LARGE: Final = 50_000  # counts of a posterior above which it is refreshed only by the button


class AgentMaps:
    """Requested again when the agent's version has increased."""

    def __init__(self, connection: Connection, agent: str) -> None:
        self._connection, self._agent = connection, agent
        self._version = -1  # shown in the maps
        self._requested = -REFRESH_SECONDS
        self._large = False
        self._has_steps = True  # a policy of probabilities is the same at every step
        self._marked: frozenset[tuple[int, int]] = frozenset()
        self._names: Names | None = None  # requested once: they cannot change
        with block("div", "tools"):
            Text("h2", "Policy and posterior")
            button("Refresh", self.refresh, "chip")
        with block("div", "maps"):
            with block("div", "stack"):
                self._policy = _MapCard("Policy", "No episode has started yet.", self._explain)
                with self._policy.card:
                    self._explanation = ExplanationTable(connection.client, agent)
            with block("div", "stack") as self.side:
                self._posterior = _MapCard("Posterior", "Nothing is learned yet.")

    def mark(self, pairs: frozenset[tuple[int, int]]) -> None:
        """Outline pairs of state and action in the posterior, from the next refresh on."""
        self._marked = pairs

    async def refresh_if_due(self, version: int) -> None:
        """Refresh if the version is new, the last refresh is old enough and the posterior is small."""
        due = version > self._version and time.monotonic() - self._requested >= REFRESH_SECONDS
        if due and not (self._large and self._version >= 0):
            await self.refresh()

    async def refresh(self) -> None:
        self._requested = time.monotonic()
        try:
            self._version = await self._request()
        except NotFoundError:
            pass  # no policy before the first episode: the cards' initial text
        except SafePsrlClientError as error:
            self._policy.note.set_text(f"Policy and posterior cannot be read: {visible(str(error))}")

    async def _request(self) -> int:
        """Show the current policy and posterior; returns their version."""
        client = self._connection.client
        names = self._names or await self._request_names()
        reply = await client.get_policy(self._agent)
        self._has_steps = not reply.policy.probabilities
        self._policy.show(
            f"The policy of episode {reply.episode:,}, by state and step."
            if self._has_steps
            else f"The policy of epoch {reply.episode:,}: the probability of each action, by state.",
            policy_grid(reply.policy, names),
            "The policy as a heat map",
        )
        posterior = await client.get_posterior(self._agent)
        counts = posterior.transition_counts
        num_states, num_actions, seen = await asyncio.to_thread(visits, counts)
        self._large = math.prod(counts.shape) > LARGE
        visited = sum(1 for count in seen if count)
        note = f"{transitions_in_words(seen)}; {visited:,} of {len(seen):,} pairs of state and action were visited."
        outlined = " Outlined: where drift was detected last." if self._marked else ""
        grid = posterior_grid(num_states, num_actions, seen, self._marked, names)
        self._posterior.show(note + outlined, grid, "Visits as a heat map")
        return posterior.version

    async def _request_names(self) -> Names:
        cmdp = (await self._connection.client.get_agent(self._agent, with_spec=True)).spec.cmdp
        self._names = Names(cmdp.state_names, cmdp.action_names)
        return self._names

    async def _explain(self, state: int, column: int) -> None:
        await self._explanation.explain(state, column if self._has_steps else 0, self._names or UNNAMED)


class _MapCard:
    def __init__(self, title: str, explanation: str, chosen: Chosen | None = None) -> None:
        """chosen: what a click on a cell does, with its row and column."""
        self._chosen = chosen
        with block("section", "card map", data_map=title.lower()) as self.card:
            Text("h2", title)
            self.note = Text("p", explanation)
            self._place = block("div")
            self._legend = block("ul", "legend")
            self._cut = Text("p")
        self._map: HeatMap | None = None
        self._meanings: list[tuple[str, str]] = []

    def show(self, note: str, grid: Grid, description: str) -> None:
        self.note.set_text(note)
        self._cut.set_text(grid.cut)
        if self._map is None:
            with self._place:
                self._map = HeatMap(grid, description, self._chosen)
        else:
            self._map.show(grid)
        if grid.legend != self._meanings:
            self._meanings = grid.legend
            self._legend.clear()
            with self._legend:
                for colour, text in grid.legend:
                    with block("li"):
                        ui.element("i").style(f"background: {colour}")
                        Text("span", text)


class HeatMap(Element, component="heat_map.js"):
    def __init__(self, grid: Grid, description: str, chosen: Chosen | None = None) -> None:
        super().__init__()
        self.props["description"] = description
        if chosen is not None:
            self.on("choose", lambda event: chosen(int(event.args["row"]), int(event.args["column"])))
        self.show(grid)

    def show(self, grid: Grid) -> None:
        shown = asdict(grid)
        shown["opacities"] = grid.opacities or None
        self.props["grid"] = shown
        self.update()
