"""Decisions on agents, and the replies that are promised for them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.errors import DeadlineError

MOST_LATE = 1.0  # seconds that a caller may be told later than they should be
LATE = 0.1  # or this part of the time

Reply = TypeVar("Reply")
Told = TypeVar("Told")
Answer = Callable[[Any], Any]  # makes what a caller is told of a reply
Decision = tuple[Sequence[events_pb2.Event], Reply]  # what is appended, and what the caller is told once it is durable
Decided = Decision[Reply] | Awaitable[Decision[Reply]]
Decide = Callable[[AgentRecord], Decided[Reply]]


class Made(Generic[Reply]):
    """A decision that was made already; if it must be made again, made anew."""

    def __init__(self, decision: Decided[Reply], decide: Decide[Reply]) -> None:
        self._decision: Decided[Reply] | None = decision
        self._decide = decide

    def __call__(self, record: AgentRecord) -> Decided[Reply]:
        decision, self._decision = self._decision, None
        return self._decide(record) if decision is None else decision


def as_it_is(reply: Reply) -> Reply:
    return reply


def tell(future: "asyncio.Future[Any]", answer: Answer, reply: object) -> None:
    """Give what `answer` makes of `reply`, or why it cannot."""
    try:
        future.set_result(answer(reply))
    except Exception as error:  # noqa: BLE001  # it is for whoever waits
        refuse(future, error)


def refuse(future: "asyncio.Future[Any]", error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # seen, even if the caller has gone away


class Promise(Generic[Reply]):
    """A reply that will come, for a caller who may go away: the work goes on."""

    def __init__(self, future: "asyncio.Future[Any]", answer: Answer, waiting: "set[Promise[Any]]") -> None:
        self.future = future
        self._answer = answer
        self._waiting = waiting
        waiting.add(self)

    def settle(self, reply: Any, error: BaseException | None) -> None:
        self._waiting.discard(self)
        if self.future.done():
            return
        if error is None:
            tell(self.future, self._answer, reply)
        else:
            refuse(self.future, error)

    def follow(self, work: "asyncio.Task[Reply]") -> None:
        """Settle as `work` ends."""
        work.add_done_callback(self._end)

    def _end(self, work: "asyncio.Task[Reply]") -> None:
        if work.cancelled():
            self._waiting.discard(self)
            self.future.cancel()
            return
        error = work.exception()
        self.settle(work.result() if error is None else None, error)


class Promises:
    """Promises whose callers are told after `seconds`, or a little more, to ask again: the work goes on.

    Those of a short time share a timer: one of its own would cost a tenth of a step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._width = min(MOST_LATE, LATE * seconds)
        self._until = 0.0  # when the present ones are complete
        self._waiting: set[Promise[Any]] = set()

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Asked for once: it takes a system call."""
        return asyncio.get_running_loop()

    def make(self, answer: Answer = as_it_is) -> "Promise[Any]":
        loop = self.loop
        now = loop.time()
        if now >= self._until:
            self._until = now + self._width
            self._waiting = set()
            loop.call_later(self._seconds + self._width, self._give_up, self._waiting)
        return Promise(loop.create_future(), answer, self._waiting)

    def _give_up(self, waiting: "set[Promise[Any]]") -> None:
        for promise in list(waiting):
            late = DeadlineError(f"not done within {self._seconds:g} s; it goes on, and can be asked for again")
            promise.settle(None, late)
