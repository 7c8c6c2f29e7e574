"""Calls that wait to be decided: in order of arrival for each agent, in batches of at most one call per agent."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.planner import TimedPlan
from safe_psrl_server.agents.record import AgentRecord

GATHER_SECONDS: Final = 0.002  # how long a batch waits to grow, if the previous one held more than one call
Reply = TypeVar("Reply")


class Decision(NamedTuple, Generic[Reply]):
    """Events to append, and what the caller receives once they are durable."""

    events: Sequence[events_pb2.Event]
    reply: Reply


class PlanNeeded(NamedTuple, Generic[Reply]):
    """A decision that needs a plan for `state`; `finish` turns the plan into the decision."""

    learner: SafePsrl
    state: AgentState
    finish: Callable[[TimedPlan], Decision[Reply]]


class Prepared(NamedTuple):
    """A decision with its stored form, made in worker threads for the record at `version`."""

    version: int
    decision: Decision[Any]
    payloads: Sequence[bytes]
    policies: Mapping[int, bytes]


Decide = Callable[[AgentRecord], Decision[Reply] | PlanNeeded[Reply]]


@dataclass(eq=False)
class Call(Generic[Reply]):
    """A call that changes an agent, until it is answered."""

    agent: str
    decide: Decide[Reply]
    may_create: bool
    future: "asyncio.Future[Reply]"
    attempts: int = 0  # decisions that were outdated when they were committed
    prepared: Prepared | None = None

    def answer(self, reply: Reply) -> None:
        if not self.future.done():  # the caller may have gone away
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # retrieved, even if the caller has gone away


class Inbox:
    """Filled by calls, emptied by the runtime. The calls of an agent that is held wait until it is released."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Call[Any]]] = {}  # none of them is empty
        self._held: dict[str, deque[asyncio.Future[None]]] = {}  # with those that wait to hold the agent next
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_batch = 0

    def put(self, call: Call[Any]) -> None:
        self._queues.setdefault(call.agent, deque()).append(call)
        self._idle.clear()
        self._changed.set()

    def put_back(self, call: Call[Any]) -> None:
        """As the next call of its agent."""
        self._queues.setdefault(call.agent, deque()).appendleft(call)

    async def take(self) -> list[Call[Any]]:
        """Wait for a call; then take and hold the next call of every agent that is not held."""
        if self._last_batch > 1:
            await self._gather()
        while not (ready := [agent for agent in self._queues if agent not in self._held]):
            self._changed.clear()
            await self._changed.wait()
        self._last_batch = len(ready)
        return [self._next(agent) for agent in ready]

    async def hold(self, agent: str) -> None:
        """Keep the agent's calls waiting until `release`. Waits while the agent is held, and goes before waiting calls."""
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
        self._changed.set()
        if not self._held and not self._queues:
            self._idle.set()

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

    async def _gather(self) -> None:
        """Wait for as many agents as in the previous batch, at most GATHER_SECONDS."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GATHER_SECONDS
        while len(self._queues) < self._last_batch and (rest := until - loop.time()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(rest):
                    await self._changed.wait()
            except TimeoutError:
                return
