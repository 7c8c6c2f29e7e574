"""Decisions on agents, and the replies that are promised for them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.errors import DeadlineError

Reply = TypeVar("Reply")
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


class Promise(Generic[Reply]):
    """A reply that will come, for a caller who may go away, or who is told after `seconds` to ask again: the work goes on."""

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Reply] = loop.create_future()
        self._seconds = seconds
        self._timer = loop.call_later(seconds, self._give_up)

    def settle(self, reply: Any, error: BaseException | None) -> None:
        self._timer.cancel()
        if self.future.done():
            return
        if error is None:
            self.future.set_result(reply)
        else:
            self.future.set_exception(error)
            self.future.exception()  # seen, even if the caller has gone away

    def follow(self, work: "asyncio.Task[Reply]") -> None:
        """Settle as `work` ends."""
        work.add_done_callback(self._end)

    def _end(self, work: "asyncio.Task[Reply]") -> None:
        if work.cancelled():
            self.future.cancel()
            self._timer.cancel()
            return
        error = work.exception()
        self.settle(work.result() if error is None else None, error)

    def _give_up(self) -> None:
        self.settle(None, DeadlineError(f"not done within {self._seconds:g} s; it goes on, and can be asked for again"))


def given(reply: Reply) -> "asyncio.Future[Reply]":
    """A reply that is there already."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    future.set_result(reply)
    return future
