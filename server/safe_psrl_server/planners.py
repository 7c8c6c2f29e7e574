"""Making plans: short ones at once, long ones in threads that give way to whoever answers calls."""

import asyncio
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from safe_psrl.learner import AgentState, Plan, SafePsrl, settle
from safe_psrl_server.scheduling import run_when_idle

SHORT_WORK = 300_000  # products and draws of a plan that is made without a thread
SHORT_WORK_SECONDS = 0.001  # that it takes, about
SHORT_WORK_AT_WORST = 10 * SHORT_WORK  # if every kernel that may be drawn must be
ADAPTIVE_PLANS = 25  # ordinary plans that an adaptive one takes
LEAST_PATIENCE = 0.2  # seconds
PATIENCE = 5  # times what a plan should take


class TimedPlan(NamedTuple):
    """A plan, the seconds that it took to make, and what it was made of, settled: that takes time, too, for large tables."""

    plan: Plan
    seconds: float
    state: AgentState


class Planners:
    """Threads for long plans.

    They run while no other thread wants the core. On a machine that is always busy they would never end, so a plan that takes
    far longer than it should is made again by a thread like any other: it is the same plan.
    """

    def __init__(self, threads: int) -> None:
        self._patient = ThreadPoolExecutor(threads, "planner", run_when_idle)
        self._urgent = ThreadPoolExecutor(threads, "urgent-planner")

    def plan(self, learner: SafePsrl, state: AgentState) -> TimedPlan | Awaitable[TimedPlan]:
        """The next episode's plan. A long one is made in a thread, off the loop."""
        return _plan(learner, state) if is_short(learner) else self._in_thread(learner, state)

    def close(self) -> None:
        self._patient.shutdown()
        self._urgent.shutdown()

    async def _in_thread(self, learner: SafePsrl, state: AgentState) -> TimedPlan:
        loop = asyncio.get_running_loop()
        planning = loop.run_in_executor(self._patient, _plan, learner, state)
        try:
            return await asyncio.wait_for(asyncio.shield(planning), patience(learner))
        except TimeoutError:
            planning.cancel()  # if it has not begun
            return await loop.run_in_executor(self._urgent, _plan, learner, state)


def is_short(learner: SafePsrl) -> bool:
    """Whether a plan may be made on the loop."""
    if learner.options.is_adaptive and learner.spec.num_constraints > 1:
        return False
    return _work(learner) <= SHORT_WORK and learner.work * learner.problem.max_draws <= SHORT_WORK_AT_WORST


def patience(learner: SafePsrl) -> float:
    """Seconds after which a plan that is being made in idle time is overdue."""
    return LEAST_PATIENCE + PATIENCE * SHORT_WORK_SECONDS * _work(learner) / SHORT_WORK


def _work(learner: SafePsrl) -> int:
    """Products and draws of a plan. An adaptive one is about as many ordinary ones, or linear programs."""
    return learner.work * (ADAPTIVE_PLANS if learner.options.is_adaptive else 1)


def _plan(learner: SafePsrl, state: AgentState) -> TimedPlan:
    began = time.perf_counter()
    state = settle(learner.spec, state)
    plan = learner.plan(state)
    return TimedPlan(plan, time.perf_counter() - began, state)
