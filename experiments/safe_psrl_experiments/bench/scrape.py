"""`bench scrape`: what a scrape of 1,000 agents takes, and what it does to the calls beside it.

Every step is of another agent, so that most of them have changed when they are scraped: the most expensive case.
"""

import asyncio
import time
from itertools import cycle
from statistics import median
from typing import Final

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.measure import Report, Result, fetch, judged, percentile, silent
from safe_psrl_proto.v1 import control_pb2

AGENTS: Final = 1_000
TURN_SECONDS: Final = 1.0  # between scrapes
MOST_MILLISECONDS: Final = 1_000.0


def bench_scrape(
    target: str, metrics_url: str, rounds: int = 15, report: Report = silent, agents: int = AGENTS
) -> list[Result]:
    """Of a server in another process that has no agents yet."""
    return asyncio.run(_bench(target, metrics_url, rounds, report, agents))


async def _bench(target: str, url: str, rounds: int, report: Report, agents: int) -> list[Result]:
    quiet, beside, changed = list[float](), list[float](), list[float]()
    async with load.connected(target) as channel:
        report(f"creating {agents:,} agents")
        fleet = _Fleet(load.Target(channel), [f"agent-{number:04}" for number in range(agents)])
        await fleet.create()
        for number in range(rounds + 1):
            report(f"steps with a scrape every {TURN_SECONDS:g} s and without", number, rounds + 1)
            without = await fleet.steps()
            scraped, scrape = await asyncio.gather(fleet.steps(), asyncio.to_thread(_scrape, url))
            if number:  # the first round warms up
                quiet += without
                beside += scraped
                changed.append(scrape)
    report("scrapes of agents that do not change")
    unchanged = [_scrape(url) for _ in range(rounds + 1)][1:]
    name = f"{agents:,} agents"
    return [
        judged(f"scrape of {name}, changed", median(changed), MOST_MILLISECONDS, "one second", "ms", ("<=", 1)),
        judged(f"scrape of {name}, unchanged", median(unchanged), MOST_MILLISECONDS, "one second", "ms", ("<=", 1)),
        judged("Step beside scrapes, median", median(beside), median(quiet), "without scrapes", "ms", ("<=", 1.2)),
        judged("Step beside scrapes, 99 %", percentile(beside), percentile(quiet), "without scrapes", "ms"),
    ]


class _Fleet:
    """Agents that play a state that never changes, one step after the other."""

    def __init__(self, target: load.Target, names: list[str]) -> None:
        self._target = target
        self._actions = dict.fromkeys(names, 0)
        self._order = cycle(names)

    async def create(self) -> None:
        await self._target.create(list(self._actions))
        for agent in self._actions:
            self._actions[agent] = (await self._target.start(agent)).action

    async def steps(self) -> list[float]:
        """The milliseconds of each step of a turn."""
        until, took = time.monotonic() + TURN_SECONDS, list[float]()
        while time.monotonic() < until:
            agent = next(self._order)
            transition = control_pb2.Transition(state=0, action=self._actions[agent], next_state=0)
            request = control_pb2.StepRequest(agent=agent, transition=transition)
            milliseconds, reply = await load.timed(self._target.control.Step, request)
            took.append(milliseconds)
            self._actions[agent] = (await self._target.start(agent)).action if reply.episode_done else reply.action
        return took


def _scrape(url: str) -> float:
    """Milliseconds of one scrape."""
    began = time.perf_counter()
    fetch(url)
    return (time.perf_counter() - began) * 1e3
