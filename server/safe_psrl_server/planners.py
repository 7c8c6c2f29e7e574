"""Making plans: short ones at once, long ones in threads that give way to whoever answers calls."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from safe_psrl.learner import AgentState, Plan, SafePsrl
from safe_psrl.streams import open_stream

SHORT_WORK = 300_000  # products and draws of a plan that is made without a thread: about a millisecond
SHORT_WORK_AT_WORST = 10 * SHORT_WORK  # if every kernel that may be drawn must be
ADAPTIVE_PLANS = 25  # ordinary plans that an adaptive one takes
NICE = 19

_own = threading.local()  # each thread has a stream of random numbers to plan with


class TimedPlan(NamedTuple):
    """A plan, and the seconds that it took to make."""

    plan: Plan
    seconds: float


class Planners:
    """Threads for long plans."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "planner", _give_way)

    def plan(self, learner: SafePsrl, state: AgentState) -> TimedPlan | Awaitable[TimedPlan]:
        """The next episode's plan. A long one is made in a thread, off the loop."""
        if is_short(learner):
            return _plan(learner, state)
        return asyncio.get_running_loop().run_in_executor(self._threads, _plan, learner, state)

    def close(self) -> None:
        self._threads.shutdown()


def is_short(learner: SafePsrl) -> bool:
    """Whether a plan may be made on the loop. An adaptive one is about as many ordinary ones, or linear programs."""
    spec, options = learner.spec, learner.options
    if options.is_adaptive and spec.num_constraints > 1:
        return False
    rows, width = spec.num_states * spec.num_actions, spec.dirichlet_prior.shape[-1]
    work = rows * width * (spec.horizon + 20)
    plans = ADAPTIVE_PLANS if options.is_adaptive else 1
    return bool(work * plans <= SHORT_WORK and work * learner.problem.max_draws <= SHORT_WORK_AT_WORST)


def _plan(learner: SafePsrl, state: AgentState) -> TimedPlan:
    began = time.perf_counter()
    if not hasattr(_own, "stream"):
        _own.stream = open_stream()
    _, plan = learner.start_episode(state, _own.stream)
    return TimedPlan(plan, time.perf_counter() - began)


def _give_way() -> None:
    """Run only when nobody else wants the core. On Linux priorities are of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
