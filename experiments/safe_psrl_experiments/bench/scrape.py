"""`bench scrape`: what a scrape of 1,000 agents takes, and what it does to the calls beside it.

Every step is of another agent, so that most of them have changed when they are scraped: the dearest case.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from statistics import median
from typing import Final

import grpc

from safe_psrl_experiments.bench.measure import Report, Result, fetch, judged, percentile, silent
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

AGENTS: Final = 1_000
TURN_SECONDS: Final = 1.0  # between scrapes
CALL_SECONDS: Final = 60.0
MOST_MILLISECONDS: Final = 1_000.0


def bench_scrape(
    target: str, metrics_url: str, rounds: int = 15, report: Report = silent, agents: int = AGENTS
) -> list[Result]:
    """Of a server in another process that has no agents yet."""
    with grpc.insecure_channel(target) as channel:
        report(f"creating {agents:,} agents")
        fleet = _Fleet(channel, agents)
        report(f"steps with a scrape every {TURN_SECONDS:g} s and without, in turn")
        quiet, beside, scrapes = _take_turns(fleet, metrics_url, rounds)
    report("scrapes of agents that do not change")
    unchanged = [_scrape(metrics_url) for _ in range(rounds + 1)][1:]
    name = f"{agents:,} agents"
    return [
        judged(f"scrape of {name}, changed", median(scrapes), MOST_MILLISECONDS, "one second", "ms", ("<=", 1)),
        judged(f"scrape of {name}, unchanged", median(unchanged), MOST_MILLISECONDS, "one second", "ms", ("<=", 1)),
        judged("Step beside scrapes, median", median(beside), median(quiet), "without scrapes", "ms", ("<=", 1.2)),
        judged("Step beside scrapes, 99 %", percentile(beside), percentile(quiet), "without scrapes", "ms"),
    ]


class _Fleet:
    """Agents that play a state that never changes, one step after the other."""

    def __init__(self, channel: grpc.Channel, agents: int) -> None:
        self._admin = admin_pb2_grpc.AdminServiceStub(channel)
        self._control = control_pb2_grpc.ControlServiceStub(channel)
        self._actions = dict.fromkeys((f"agent-{number:04}" for number in range(agents)), 0)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._create, self._actions))
        self._turns = cycle(self._actions)

    def step(self) -> float:
        """One step of the next agent; the milliseconds that it took."""
        agent = next(self._turns)
        transition = control_pb2.Transition(state=0, action=self._actions[agent], next_state=0)
        began = time.perf_counter()
        reply = self._control.Step(control_pb2.StepRequest(agent=agent, transition=transition), timeout=CALL_SECONDS)
        took = (time.perf_counter() - began) * 1e3
        self._actions[agent] = reply.action
        if reply.episode_done:
            self._start(agent)
        return took

    def _create(self, agent: str) -> None:
        request = admin_pb2.CreateAgentRequest(agent=agent, preset="streaming-buffer")
        self._admin.CreateAgent(request, timeout=CALL_SECONDS)
        self._start(agent)

    def _start(self, agent: str) -> None:
        request = control_pb2.StartEpisodeRequest(agent=agent, state=0)
        self._actions[agent] = self._control.StartEpisode(request, timeout=CALL_SECONDS).action


def _take_turns(fleet: _Fleet, url: str, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of steps in quiet turns, of steps in turns that begin with a scrape, and of the scrapes."""
    quiet, beside, scrapes = list[float](), list[float](), list[float]()
    for number in range(rounds + 1):
        without = _steps(fleet)
        scraper = threading.Thread(target=lambda: scrapes.append(_scrape(url)))
        scraper.start()
        scraped = _steps(fleet)
        scraper.join()
        if number == 0:  # the first round warms up
            scrapes.clear()
            continue
        quiet += without
        beside += scraped
    return quiet, beside, scrapes


def _steps(fleet: _Fleet) -> list[float]:
    until, steps = time.monotonic() + TURN_SECONDS, list[float]()
    while time.monotonic() < until:
        steps.append(fleet.step())
    return steps


def _scrape(url: str) -> float:
    """Milliseconds of one scrape."""
    began = time.perf_counter()
    fetch(url)
    return (time.perf_counter() - began) * 1e3
