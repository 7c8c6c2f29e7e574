"""The one write path: take calls, decide, commit, apply, answer.

Every call that changes an agent passes through `Runtime.run`. Decisions are pure functions of committed records. Records
change only after the commit and before the answer, so reads need no lock. While a commit is under way the next calls
gather: that is the group commit. Work that takes long (loading an agent, planning, packing large policies) happens outside
the batch, while the calls of that agent wait.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import structlog

from safe_psrl_server.agents.decisions import Decision
from safe_psrl_server.agents.events import is_bulky
from safe_psrl_server.agents.inbox import Call, Inbox, Prepared, not_ready
from safe_psrl_server.agents.planner import Planner
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.registry import Registry, no_agent, unavailable
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.errors import ServiceError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import NO_POLICIES, Append, EventStore, StoreFailedError, StoreUnavailableError

MAX_ATTEMPTS: Final = 100  # to commit one call, while other replicas keep changing its agent
NOTHING: Final = Prepared(0, Decision((), None), (), NO_POLICIES)
log = structlog.get_logger()


class _Decided(NamedTuple):
    """A decision that waits for its commit. If the record may be outdated, a rejection waits as well."""

    call: Call[Any]
    agent: Agent
    prepared: Prepared
    append: Append
    rejection: ServiceError | None


class Runtime:
    """The write path of one process. The constructor starts nothing: `run` is the loop."""

    def __init__(
        self,
        store: EventStore,
        registry: Registry,
        planner: Planner,
        meter: Meter,
        call_seconds: float,
        on_change: Callable[[Agent], None],
    ) -> None:
        self.failure: StoreFailedError | None = None
        self.failed = asyncio.Event()
        self._store = store
        self._registry = registry
        self._planner = planner
        self._meter = meter
        self._on_change = on_change
        self._inbox = Inbox(call_seconds)
        registry.members.is_busy = self._inbox.is_busy
        self.hits = 0  # calls that found their agent in memory
        self.submit = self._inbox.submit
        self.check_ready = self._inbox.check_ready
        self.exclusive = self._inbox.exclusive
        self.stop_plan = planner.stop
        self._tasks = set[asyncio.Task[None]]()  # referenced until they end

    @property
    def ready(self) -> bool:
        return self._inbox.rejection is None

    @ready.setter
    def ready(self, ready: bool) -> None:
        """Whether calls are accepted."""
        self._inbox.rejection = None if ready else not_ready

    async def finish(self) -> None:
        """Return when every call is answered."""
        if self.failure is None:
            await self._inbox.wait_until_idle()

    async def run(self) -> None:
        """The loop. Ends if a commit fails or a defect is found: nothing more may be acknowledged then."""
        while self.failure is None:
            self._registry.members.trim()  # those that were busy when others came
            calls = await self._inbox.take()
            try:
                batch = [decided for call in calls if (decided := self._decide(call)) is not None]
                if not batch:
                    continue
                began = time.perf_counter()
                conflicts = await self._store.commit([decided.append for decided in batch])
                self._meter.committed(time.perf_counter() - began, sum(len(decided.append.events) for decided in batch))
                for decided in batch:
                    if decided.call.agent in conflicts:
                        self._decide_again(decided)
                    else:
                        self._apply(decided)
                del calls, batch, decided  # or they would live until the next call
            except StoreUnavailableError as error:
                log.warning("commit failed", error=str(error), appends=len(batch))
                for decided in batch:
                    self._end(decided.call, unavailable(error))
            except Exception as error:  # noqa: BLE001  # the outcome is unknown
                self._fail(calls, error)

    def _decide(self, call: Call[Any]) -> _Decided | None:
        """The decision to commit; None if the call is over, or waits for work outside the batch."""
        agent = self._registry.resident(call.agent)
        if call.future.done():  # the caller has gone away
            self._end(call, None)
            return None
        if agent is None:
            call.waited = True
            self._defer(call, self._registry.load(call.agent, may_create=call.may_create))
            return None
        self.hits += call.prepared is None and not call.waited
        prepared: Prepared | Awaitable[Prepared] | None
        rejection: ServiceError | None = None
        try:
            record = agent.intact
            if not (record.exists or call.may_create):
                raise no_agent(call.agent)  # noqa: TRY301  # handled like any rejection
            prepared = call.prepared
            if prepared is None or prepared.version != record.version:
                prepared = self._planner.prepare(call, record)
            if isinstance(prepared, Prepared):
                rejection = prepared.decision.refusal
        except ServiceError as error:
            prepared, rejection = NOTHING, error
        except Exception as error:  # a defect fails its own call, not the loop
            log.exception("a decision failed", agent=call.agent)
            self._end(call, error)
            return None
        if not isinstance(prepared, Prepared):
            self._defer(call, prepared)
            return None
        if agent.record is None or not (prepared.payloads or self._store.is_shared):
            self._end(call, rejection, prepared.decision.reply)
            return None
        return _Decided(call, agent, prepared, _append_of(agent.record, prepared), rejection)

    def _defer(self, call: Call[Any], work: Awaitable[object]) -> None:
        """Decide the call again after `work`; the agent stays held until then."""

        async def then_decide() -> None:
            try:
                result = await work
                call.prepared = result if isinstance(result, Prepared) else None
                self._inbox.put_back(call)
                self._inbox.release(call.agent)
            except Exception as error:  # noqa: BLE001  # reported to the caller
                self._end(call, unavailable(error) if isinstance(error, StoreUnavailableError) else error)

        task = asyncio.create_task(then_decide())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _decide_again(self, decided: _Decided) -> None:
        """Another replica appended first: read its events and decide the call again."""
        call = decided.call
        call.attempts += 1
        if call.attempts < MAX_ATTEMPTS:
            self._defer(call, self._registry.catch_up(decided.agent))
        else:
            message = f"other replicas changed agent {call.agent!r} {MAX_ATTEMPTS} times meanwhile; try again"
            self._end(call, UnavailableError(message, "CONTENTION"))

    def _apply(self, decided: _Decided) -> None:
        """The append is durable: change the record, then answer."""
        call, agent, prepared, append, rejection = decided
        decision, record = prepared.decision, agent.record
        if decision.events and record is not None and record.version == append.expected_version:
            existed, known = record.exists, record.totals.transitions
            if not existed and is_bulky(decision.events):  # its tables take time to build: the next use does it in a thread
                self._registry.created_unread(call.agent)
                self._end(call, None, decision.reply)
                return
            try:
                for event in decision.events:
                    record.apply(event)
                for number, policy in prepared.arrays.items():
                    record.episodes[number].policy = policy
            except Exception:  # the record may be half changed: load it again
                log.exception("an event could not be applied", agent=call.agent)
                self._registry.evict(call.agent)
                self._end(call, UnavailableError(f"agent {call.agent!r} must be loaded again; try again", "RELOADED"))
                return
            learned = record.totals.transitions - known if existed else 0  # an imported agent has learned elsewhere
            if learned:
                self._meter.learned(learned)
            agent.changed(decision.events[0].time_micros, learned)
            if not existed:
                self._registry.created(agent)
            elif not record.exists:
                self._registry.deleted(agent)
            else:
                self._registry.changed(agent)
                self._on_change(agent)
        call.end(rejection, decision.reply)
        self._inbox.release(call.agent)

    def _end(self, call: Call[Any], error: Exception | None, reply: Any = None) -> None:
        call.end(error, reply)
        if error is not None:
            self._registry.drop_blank(call.agent)
        self._inbox.release(call.agent)

    def _fail(self, calls: list[Call[Any]], error: Exception) -> None:
        """The process must stop: fail every call."""
        self.failure = error if isinstance(error, StoreFailedError) else StoreFailedError(f"a commit failed: {error!r}")
        self._inbox.rejection = self._stopping
        for call in [*calls, *self._inbox.clear()]:
            call.end(self._stopping())
        self.failed.set()

    def _stopping(self) -> UnavailableError:
        return UnavailableError(f"the server is stopping: {self.failure}", "STORE_FAILED")


def _append_of(record: AgentRecord, prepared: Prepared) -> Append:
    events = prepared.decision.events
    if events and events[-1].WhichOneof("kind") == "agent_deleted":
        return Append(record.name, record.version, (), deleted=True)
    dropped = record.obsolete_policies(events) if record.exists else ()
    return Append(record.name, record.version, prepared.payloads, prepared.policies, dropped)
