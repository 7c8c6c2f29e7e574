"""Making plans: short ones on the event loop, long ones in worker threads."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numba
import numpy as np

from safe_psrl.learner import AgentState, Plan, SafePsrl, settle
from safe_psrl.version import __version__

PLANNED_BY: Final = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
SHORT_WORK: Final = 300_000  # products and draws of a plan made on the event loop: about a millisecond
SHORT_WORK_AT_WORST: Final = 10 * SHORT_WORK  # if every permitted kernel draw is needed
ADAPTIVE_PLANS: Final = 25  # ordinary plans that an adaptive one takes


class TimedPlan(NamedTuple):
    """A plan and the seconds it took."""

    plan: Plan
    seconds: float


class Planner:
    """Worker threads for long plans."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "planner")

    async def plan_in_thread(self, learner: SafePsrl, state: AgentState) -> TimedPlan:
        """The tables of `state` must not change meanwhile, or the result must be discarded."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, make_plan, learner, state)

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
