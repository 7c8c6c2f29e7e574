"""The one write path: take calls, decide, commit, apply, answer.

Every call that changes an agent passes through `Runtime.run`. Decisions are pure functions of committed records. Records
change only after the commit and before the answer, so reads need no lock. While a commit is under way the next calls
gather: that is the group commit. Work that takes long (loading an agent, planning, packing large policies) happens outside
the batch, while the calls of that agent wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import structlog

from safe_psrl_server.agents.background import Background
from safe_psrl_server.agents.inbox import Call, Decide, Decision, Inbox, PlanNeeded, Prepared, Reply
from safe_psrl_server.agents.planner import Planner, is_short, make_plan
from safe_psrl_server.agents.policies import encode, is_large
from safe_psrl_server.agents.registry import Agent, Registry, no_agent, unavailable
from safe_psrl_server.errors import DeadlineError, ServiceError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import NO_POLICIES, Append, EventStore, StoreFailedError, StoreUnavailableError

MAX_ATTEMPTS: Final = 100  # of one call, while other replicas keep changing its agent
NOTHING: Final = Prepared(0, Decision((), None), (), NO_POLICIES)
log = structlog.get_logger()


class _Decided(NamedTuple):
    """A decision that waits for its commit. A refusal waits, too, where the record may be outdated."""

    call: Call[Any]
    agent: Agent
    decision: Decision[Any]
    append: Append
    refusal: ServiceError | None


class Runtime:
    """The calls of one process. Starts nothing by itself: `run` is the loop."""

    def __init__(
        self,
        store: EventStore,
        registry: Registry,
        planner: Planner,
        meter: Meter,
        call_seconds: float,
        on_change: Callable[[Agent], None],
    ) -> None:
        self.ready = False  # calls are refused until the server has started, and again when it stops
        self.failure: StoreFailedError | None = None
        self.failed = asyncio.Event()
        self._store = store
        self._registry = registry
        self._planner = planner
        self._meter = meter
        self._call_seconds = call_seconds
        self._on_change = on_change
        self._inbox = Inbox()
        self._background = Background()

    def submit(self, agent: str, decide: Decide[Reply], *, may_create: bool = False) -> "asyncio.Future[Reply]":
        """Enqueue a call; its reply is the future's result. Calls for one agent are decided in the order of submission.

        A call whose caller goes away before it is decided is dropped; afterwards it is carried out. Raises
        `UnavailableError` while the server is starting or stopping.
        """
        self.check_ready()
        loop = asyncio.get_running_loop()
        call = Call(agent, decide, may_create, loop.create_future())
        if self.failure is not None:
            call.fail(_stopping(self.failure))
            return call.future
        timer = loop.call_later(self._call_seconds, self._give_up, call)
        call.future.add_done_callback(lambda _: timer.cancel())
        self._inbox.put(call)
        return call.future

    def check_ready(self) -> None:
        if not self.ready:
            raise UnavailableError("the server is starting or stopping; try again", "NOT_READY")

    @asynccontextmanager
    async def exclusive(self, agent: str) -> AsyncIterator[None]:
        """Keep the agent's calls waiting, so that its record does not change."""
        await self._inbox.hold(agent)
        try:
            yield
        finally:
            self._inbox.release(agent)

    async def run(self) -> None:
        """The loop. Ends when a commit fails, or at a defect: then nothing more may be acknowledged."""
        while self.failure is None:
            calls = await self._inbox.take()
            try:
                batch = [decided for call in calls if (decided := self._decide(call)) is not None]
                if batch:
                    await self._commit(batch)
            except Exception as error:  # noqa: BLE001  # the outcome is unknown
                self._fail(calls, error)

    async def finish(self) -> None:
        """Return when every call is answered."""
        if self.failure is None:
            await self._inbox.wait_until_idle()

    def _give_up(self, call: Call[Any]) -> None:
        call.fail(DeadlineError(f"not done within {self._call_seconds:g} s; it may still complete and can be repeated"))

    # --- decide

    def _decide(self, call: Call[Any]) -> _Decided | None:
        """The decision to commit; None if the call is over, or waits for work outside the batch."""
        agent = self._registry.resident(call.agent)
        if call.future.done():  # the caller has gone away
            self._inbox.release(call.agent)
            return None
        if agent is None:
            self._defer(call, self._registry.load(call.agent, may_create=call.may_create))
            return None
        refusal: ServiceError | None = None
        try:
            outcome = self._outcome(call, agent)
        except ServiceError as error:
            outcome, refusal = NOTHING, error
        except Exception as error:  # a defect fails its own call, not the loop
            log.exception("a decision failed", agent=call.agent)
            self._end(call, error)
            return None
        if not isinstance(outcome, Prepared):
            self._defer(call, outcome)
            return None
        record = agent.record
        if record is None or not (outcome.payloads or self._store.is_shared):
            self._end(call, refusal, outcome.decision.reply)
            return None
        dropped = record.obsolete_policies(outcome.decision.events) if record.exists else ()
        append = Append(call.agent, record.version, outcome.payloads, outcome.policies, dropped)
        return _Decided(call, agent, outcome.decision, append, refusal)

    def _outcome(self, call: Call[Any], agent: Agent) -> Prepared | Awaitable[None]:
        """The decision, or the work that prepares it outside the batch."""
        record = agent.intact
        if not (record.exists or call.may_create):
            raise no_agent(call.agent)
        if call.prepared is not None and call.prepared.version == record.version:
            return call.prepared
        outcome = call.decide(record)
        if isinstance(outcome, PlanNeeded):
            if not is_short(outcome.learner):
                return self._prepare(call, outcome, record.version)
            outcome = outcome.finish(make_plan(outcome.learner, outcome.state))
        if any(map(is_large, outcome.events)):
            return self._prepare(call, outcome, record.version)
        return Prepared(record.version, outcome, [event.SerializeToString() for event in outcome.events], NO_POLICIES)

    async def _prepare(self, call: Call[Any], outcome: Decision[Any] | PlanNeeded[Any], version: int) -> None:
        """Plan and encode in worker threads. Discarded if the record has changed by the time it is decided on."""
        if isinstance(outcome, PlanNeeded):
            outcome = outcome.finish(await self._planner.plan_in_thread(outcome.learner, outcome.state))
        payloads, policies = await asyncio.to_thread(encode, outcome.events)
        call.prepared = Prepared(version, outcome, payloads, policies)

    def _defer(self, call: Call[Any], work: Awaitable[object]) -> None:
        """Decide the call again after `work`; the agent stays held until then."""

        async def then_decide() -> None:
            try:
                await work
                self._inbox.put_back(call)
            except Exception as error:  # noqa: BLE001  # reported to the caller
                call.fail(unavailable(error) if isinstance(error, StoreUnavailableError) else error)
            finally:
                self._inbox.release(call.agent)

        self._background.start(then_decide())

    # --- commit, apply, answer

    async def _commit(self, batch: list[_Decided]) -> None:
        began = time.perf_counter()
        try:
            conflicts = await self._store.commit([decided.append for decided in batch])
        except StoreUnavailableError as error:
            log.warning("commit failed", error=str(error), appends=len(batch))
            for decided in batch:
                self._end(decided.call, unavailable(error))
            return
        self._meter.committed(time.perf_counter() - began, sum(len(decided.append.events) for decided in batch))
        for decided in batch:
            if decided.append.agent in conflicts:
                self._decide_again(decided)
            else:
                self._apply(decided)

    def _apply(self, decided: _Decided) -> None:
        """The append is durable: change the record, then answer."""
        call, agent, decision, append, refusal = decided
        record = agent.record
        if decision.events and record is not None and record.version == append.expected_version:
            existed, known = record.exists, record.totals.transitions
            try:
                for event in decision.events:
                    record.apply(event)
            except Exception:  # the record may be half changed: load it again
                log.exception("an event could not be applied", agent=call.agent)
                self._registry.evict(call.agent)
                self._end(call, UnavailableError(f"agent {call.agent!r} must be loaded again; try again", "RELOADED"))
                return
            learned = record.totals.transitions - known if existed else 0  # an imported agent has learned elsewhere
            self._meter.learned(learned)
            agent.changed(decision.events[0].time_micros, learned)
            self._registry.note(agent)
            self._on_change(agent)
        self._end(call, refusal, decision.reply)

    def _decide_again(self, decided: _Decided) -> None:
        """Another replica appended first: read what it did."""
        call = decided.call
        call.attempts += 1
        if call.attempts < MAX_ATTEMPTS:
            self._defer(call, self._registry.catch_up(decided.agent))
        else:
            message = f"other replicas changed agent {call.agent!r} {MAX_ATTEMPTS} times meanwhile; try again"
            self._end(call, UnavailableError(message, "CONTENTION"))

    def _end(self, call: Call[Any], error: Exception | None, reply: Any = None) -> None:
        if error is None:
            call.answer(reply)
        else:
            call.fail(error)
            self._registry.drop_blank(call.agent)
        self._inbox.release(call.agent)

    def _fail(self, calls: list[Call[Any]], error: Exception) -> None:
        """The process must stop: fail every call."""
        self.failure = error if isinstance(error, StoreFailedError) else StoreFailedError(f"a commit failed: {error!r}")
        for call in [*calls, *self._inbox.clear()]:
            call.fail(_stopping(self.failure))
        self.failed.set()


def _stopping(failure: StoreFailedError) -> UnavailableError:
    return UnavailableError(f"the server is stopping: {failure}", "STORE_FAILED")
