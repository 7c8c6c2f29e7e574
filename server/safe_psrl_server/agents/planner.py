"""Makes plans, and converts decisions to their stored form: short work on the event loop, long work in threads.

Plans have threads of their own. `Threads` runs other work whose time grows with the size of an agent: loading, packing,
checks, digests.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import numba
import numpy as np

from safe_psrl.arrays import Mask
from safe_psrl.continuing import ContinuingPsrl, ContinuingState, EpochPlan
from safe_psrl.errors import PlanStoppedError
from safe_psrl.learner import Plan, SafePsrl
from safe_psrl.version import __version__
from safe_psrl_server.agents.decisions import Decision, PlanNeeded
from safe_psrl_server.agents.episode_events import TimedPlan
from safe_psrl_server.agents.events import encode, is_large
from safe_psrl_server.agents.inbox import Call, Prepared
from safe_psrl_server.agents.messages import table_of_policy
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.errors import UnavailableError
from safe_psrl_server.store import NO_POLICIES

PLANNED_BY: Final = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
SHORT_WORK: Final = 300_000  # products and draws of a plan made on the event loop: about a millisecond
SHORT_WORK_AT_WORST: Final = 10 * SHORT_WORK  # the limit if every permitted kernel draw is needed
CERTIFIED_PLANS: Final = 25  # a certified plan takes as long as so many ordinary ones
THREADS: Final = 4  # for work other than plans
Result = TypeVar("Result")


class Threads:
    """The service's own thread pool. A program that embeds the service may occupy the event loop's default pool."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, "worker")

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` in a thread. If the caller goes away before the work starts, it is dropped."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments))

    def close(self) -> None:
        self._executor.shutdown()


class Planner:
    """Worker threads for long plans, shared fairly: owners take turns, and one owner never uses all threads."""

    def __init__(self, most: int, threads: Threads) -> None:
        self._planning = ThreadPoolExecutor(most, "planner")
        self._threads = threads  # for work other than plans
        self._most = max(1, most - 1)  # threads that one owner may use
        self._free = most
        self._used: dict[str, int] = {}  # threads in use, by owner; never 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # plans that wait, by owner in order of turn; never empty
        self._stops: dict[str, Mask] = {}  # the stop flags of plans, by agent
        self._turns: dict[str, asyncio.Future[None]] = {}  # plans that wait for a thread, by agent

    def prepare(self, call: Call[Any], record: AgentRecord) -> Prepared | Awaitable[Prepared]:
        """The decision of `call` for the current record; awaitable if it takes long."""
        outcome = call.context.run(call.decide, record)
        if isinstance(outcome, PlanNeeded):
            if not is_short(outcome.learner):
                return self._in_threads(call, outcome, record.version)
            outcome = call.context.run(outcome.finish, make_plan(outcome))
        for event in outcome.events:
            if is_large(event):
                return self._in_threads(call, outcome, record.version)
        return Prepared(record.version, outcome, [event.SerializeToString() for event in outcome.events], NO_POLICIES)

    def stop(self, agent: str) -> None:
        """Stop the running plan for `agent`, if there is one: its call fails with `PLAN_STOPPED`."""
        if agent in self._stops:
            self._stops[agent][0] = True
        if agent in self._turns and not self._turns[agent].done():
            self._turns[agent].set_exception(PlanStoppedError("it was waiting for a thread"))

    async def _in_threads(self, call: Call[Any], outcome: Decision[Any] | PlanNeeded[Any], version: int) -> Prepared:
        """Prepare the decision in threads. If the record changes meanwhile, the result must be discarded."""
        planned = await self._plan(call, outcome) if isinstance(outcome, PlanNeeded) else None
        return await self._threads.run(call.context.run, finished, outcome, planned, version)

    async def _plan(self, call: Call[Any], needed: PlanNeeded[Any]) -> TimedPlan:
        """Plan in a thread. The plan is stopped if the caller goes away or the call exceeds its time limit."""
        stop = self._stops[call.agent] = np.zeros(1, np.bool_)
        call.future.add_done_callback(lambda _: self.stop(call.agent) if self._stops.get(call.agent) is stop else None)
        try:
            await self._take_thread(call.agent, call.owner)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._planning, make_plan, needed, stop)
            finally:
                self._give_back(call.owner)
        except PlanStoppedError:
            message = f"the plan for agent {call.agent!r} was stopped; try again"
            raise UnavailableError(message, "PLAN_STOPPED") from None
        finally:
            del self._stops[call.agent]

    async def _take_thread(self, agent: str, owner: str) -> None:
        if not (self._free and self._used.get(owner, 0) < self._most):
            turn = self._turns[agent] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(turn)
            try:
                await turn
            finally:
                del self._turns[agent]
            return
        self._free -= 1
        self._used[owner] = self._used.get(owner, 0) + 1

    def _give_back(self, owner: str) -> None:
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]
        self._free += 1
        for following in list(self._waiting):
            if self._used.get(following, 0) >= self._most:
                continue
            waiting = deque(turn for turn in self._waiting.pop(following) if not turn.done())  # stopped plans are left out
            if not waiting:
                continue
            waiting.popleft().set_result(None)
            if waiting:
                self._waiting[following] = waiting  # at the end of the order
            self._free -= 1
            self._used[following] = self._used.get(following, 0) + 1
            return

    def close(self) -> None:
        self._planning.shutdown()


def finished(outcome: Decision[Any] | PlanNeeded[Any], planned: TimedPlan | None, version: int) -> Prepared:
    """The decision in its stored form, with its large policies as arrays."""
    decision = outcome.finish(planned) if isinstance(outcome, PlanNeeded) and planned is not None else outcome
    assert isinstance(decision, Decision)  # noqa: S101  # a plan that is needed is given
    payloads, policies = encode(decision.events)
    starts = [event.episode_started for event in decision.events if event.WhichOneof("kind") == "episode_started"]
    return Prepared(version, decision, payloads, policies, {each.episode: table_of_policy(each.policy) for each in starts})


def is_short(learner: SafePsrl | ContinuingPsrl) -> bool:
    """Whether a plan may be made on the event loop."""
    if isinstance(learner, ContinuingPsrl):
        return False  # the number of iterations is not known in advance
    if learner.options.is_certified and learner.spec.num_constraints > 1:
        return False  # solves a linear program
    work = learner.work * (CERTIFIED_PLANS if learner.options.is_certified else 1)
    return work <= SHORT_WORK and learner.work * learner.problem.max_draws <= SHORT_WORK_AT_WORST


def make_plan(needed: PlanNeeded[Any], stop: Mask | None = None) -> TimedPlan:
    learner, state, began = needed.learner, needed.state, time.perf_counter()
    plan: Plan | EpochPlan
    if isinstance(learner, ContinuingPsrl):
        waiting = ContinuingState(state, step=0, epoch_is_over=True)  # the event has the step
        plan = learner.start_epoch(waiting, needed.start, stop)[1]
    else:
        plan = learner.start_episode(state, stop)[1]
    return TimedPlan(plan, time.perf_counter() - began)
