"""Plans, and decisions in their stored form: short work on the event loop, long work in threads."""

import asyncio
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numba
import numpy as np

from safe_psrl.learner import AgentState, SafePsrl, settle
from safe_psrl.version import __version__
from safe_psrl_server.agents.decisions import Decision, PlanNeeded, TimedPlan
from safe_psrl_server.agents.events import encode, is_large
from safe_psrl_server.agents.inbox import Prepared
from safe_psrl_server.store import NO_POLICIES

PLANNED_BY: Final = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
SHORT_WORK: Final = 300_000  # products and draws of a plan made on the event loop: about a millisecond
SHORT_WORK_AT_WORST: Final = 10 * SHORT_WORK  # if every permitted kernel draw is needed
ADAPTIVE_PLANS: Final = 25  # ordinary plans that an adaptive one takes


class Planner:
    """Worker threads for long plans."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "planner")

    def prepare(self, outcome: Decision[Any] | PlanNeeded[Any], version: int) -> Prepared | Awaitable[Prepared]:
        """The decision for the record at `version`; awaitable if it takes long."""
        if isinstance(outcome, PlanNeeded):
            if not is_short(outcome.learner):
                return self._in_threads(outcome, version)
            outcome = outcome.finish(make_plan(outcome.learner, outcome.state))
        for event in outcome.events:
            if is_large(event):
                return self._in_threads(outcome, version)
        return Prepared(version, outcome, [event.SerializeToString() for event in outcome.events], NO_POLICIES)

    async def _in_threads(self, outcome: Decision[Any] | PlanNeeded[Any], version: int) -> Prepared:
        """The record must not change meanwhile, or the result must be discarded."""
        if isinstance(outcome, PlanNeeded):
            loop = asyncio.get_running_loop()
            outcome = outcome.finish(await loop.run_in_executor(self._threads, make_plan, outcome.learner, outcome.state))
        return Prepared(version, outcome, *await asyncio.to_thread(encode, outcome.events))

    def close(self) -> None:
        self._threads.shutdown()


def is_short(learner: SafePsrl) -> bool:
    """Whether a plan may be made on the event loop."""
    if learner.options.is_adaptive and learner.spec.num_constraints > 1:
        return False  # a linear program
    work = learner.work * (ADAPTIVE_PLANS if learner.options.is_adaptive else 1)
    return work <= SHORT_WORK and learner.work * learner.problem.max_draws <= SHORT_WORK_AT_WORST


def make_plan(learner: SafePsrl, state: AgentState) -> TimedPlan:
    began = time.perf_counter()
    plan = learner.plan(settle(learner.spec, state))
    return TimedPlan(plan, time.perf_counter() - began)
