"""The queue of calls to decide: in order of arrival for each agent, in batches of at most one call per agent."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple

from safe_psrl.arrays import Floats, Policy
from safe_psrl_server.agents.decisions import Decision, PlanNeeded, Reply
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.errors import DeadlineError, UnavailableError
from safe_psrl_server.security.caller import caller

GATHER_SECONDS: Final = 0.002  # the longest that a batch waits for more calls, if the previous batch had several


class Prepared(NamedTuple):
    """A decision with its stored form, made for the record at `version`."""

    version: int
    decision: Decision[Any]
    payloads: Sequence[bytes]
    policies: Mapping[int, bytes]  # stored beside the stream, by episode
    arrays: Mapping[int, Policy | Floats] = MappingProxyType({})  # policies that take time to convert, by episode


Decide = Callable[[AgentRecord], Decision[Reply] | PlanNeeded[Reply]]


@dataclass(eq=False, slots=True)
class Call(Generic[Reply]):
    """A call that changes an agent, until its future is done."""

    agent: str
    decide: Decide[Reply]
    may_create: bool
    future: "asyncio.Future[Reply]"
    owner: str  # whose share of the planning threads it takes
    context: Context  # the caller's, in which the call is decided
    timer: asyncio.TimerHandle | None = None  # fails the call if it takes too long
    attempts: int = 0  # decisions rejected by a version conflict
    prepared: Prepared | None = None
    waited: bool = False  # whether the call waited for its agent to be loaded

    def end(self, error: Exception | None, reply: Any = None) -> None:
        """Complete the future, unless the caller has gone away."""
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            return
        if error is None:
            self.future.set_result(reply)
        else:
            self.future.set_exception(error)
            self.future.exception()  # marks it as retrieved, in case the caller has gone away


class Inbox:
    """Filled by calls, emptied by the runtime. While an agent is held, its calls wait until it is released."""

    def __init__(self, call_seconds: float) -> None:
        self.rejection: Callable[[], UnavailableError] | None = not_ready  # raised for every new call
        self._call_seconds = call_seconds
        self._queues: dict[str, deque[Call[Any]]] = {}  # none of them is empty
        self._held: dict[str, deque[asyncio.Future[None]]] = {}  # held agents; the futures of those waiting to hold them
        self._wanted = 1  # the number of agents with calls that `take` waits for
        self._changed = asyncio.Event()  # set when that number is reached, or an agent is released
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_batch, self._batch_before = list[str](), list[str]()

    def check_ready(self) -> None:
        """Raise `UnavailableError` while the server is starting or stopping."""
        if self.rejection is not None:
            raise self.rejection()

    def submit(
        self, agent: str, decide: Decide[Reply], *, may_create: bool = False, urgent: bool = False
    ) -> "asyncio.Future[Reply]":
        """Enqueue a call; its reply is the future's result. Calls for one agent are decided in the order of submission, an
        urgent one before those that wait.

        A call whose caller goes away before it is decided is dropped; afterwards it is carried out. Raises
        `UnavailableError` while the server is starting or stopping.
        """
        self.check_ready()
        loop = asyncio.get_running_loop()
        call = Call(agent, decide, may_create, loop.create_future(), caller().owner or agent, copy_context())
        call.timer = loop.call_later(self._call_seconds, self._give_up, call)
        queue = self._queues.setdefault(agent, deque())
        if urgent:
            queue.appendleft(call)
        else:
            queue.append(call)
        self._idle.clear()
        if len(self._queues) >= self._wanted:
            self._changed.set()
        return call.future

    def put_back(self, call: Call[Any]) -> None:
        """Make it the next call of its agent. The caller releases the agent."""
        self._queues.setdefault(call.agent, deque()).appendleft(call)

    async def take(self) -> list[Call[Any]]:
        """Wait for a call; then take and hold the next call of every agent that is not held."""
        if len(self._last_batch) > 1:
            await self._gather()
        while not (ready := [agent for agent in self._queues if agent not in self._held]):
            self._changed.clear()
            await self._changed.wait()
        self._last_batch, self._batch_before = ready, self._last_batch
        return [self._next(agent) for agent in ready]

    @asynccontextmanager
    async def exclusive(self, agent: str) -> AsyncIterator[None]:
        """Hold the agent, so that its record does not change; waiting calls come later."""
        await self._hold(agent)
        try:
            yield
        finally:
            self.release(agent)

    def release(self, agent: str) -> None:
        waiting = self._held.get(agent)
        if waiting is None:  # after `clear`
            return
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._held[agent]
        if self._queues:
            if self._wanted == 1:
                self._changed.set()
        elif not self._held:
            self._idle.set()

    def is_busy(self, agent: str) -> bool:
        """Whether the agent is held, or has calls that wait."""
        return agent in self._held or agent in self._queues

    async def wait_until_idle(self) -> None:
        """Return when no call waits and no agent is held."""
        await self._idle.wait()

    def clear(self) -> list[Call[Any]]:
        """Remove and return all waiting calls, and release every agent."""
        calls = [call for queue in self._queues.values() for call in queue]
        self._queues.clear()
        for agent in list(self._held):
            self.release(agent)
        return calls

    def _next(self, agent: str) -> Call[Any]:
        queue = self._queues[agent]
        call = queue.popleft()
        if not queue:
            del self._queues[agent]
        self._held[agent] = deque()
        return call

    async def _hold(self, agent: str) -> None:
        self._idle.clear()
        if agent not in self._held:
            self._held[agent] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[agent].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was granted at the same moment
                self.release(agent)
            raise

    def _give_up(self, call: Call[Any]) -> None:
        call.end(DeadlineError(f"not done within {self._call_seconds:g} s; it may still complete and can be repeated"))

    async def _gather(self) -> None:
        """Wait for calls of as many agents as in the previous two batches, at most GATHER_SECONDS.

        The callers of the last batch have just been answered, and those of the batch before during its commit: most call again.
        """
        expected = len({*self._last_batch, *self._batch_before})
        if len(self._queues) >= expected:
            return
        self._wanted = expected
        self._changed.clear()
        timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._changed.set)
        await self._changed.wait()
        timer.cancel()
        self._wanted = 1


def not_ready() -> UnavailableError:
    return UnavailableError("the server is starting or stopping; try again", "NOT_READY")
