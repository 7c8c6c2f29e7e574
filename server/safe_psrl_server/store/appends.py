"""An append that waits for its commit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from typing import Any

Then = Callable[[BaseException | None], None]  # told why it failed, or None


class Append(Awaitable[int]):
    """Events for the end of a stream. Gives the new version; whoever waits with `then` is told without a pass of the loop."""

    __slots__ = ("_outcome", "_then", "agent", "dropped", "events", "expected_version", "meanwhile", "policies")

    def __init__(
        self,
        agent: str,
        expected_version: int,
        events: Sequence[bytes],
        policies: Mapping[int, bytes],
        dropped: Collection[int],
        meanwhile: Callable[[], None],
    ) -> None:
        self.agent = agent
        self.expected_version = expected_version
        self.events = events
        self.policies = policies  # that come with them
        self.dropped = dropped  # episodes whose policies go
        self.meanwhile = meanwhile  # what its caller can do while the disk writes, if it is kept waiting for that
        self._outcome: int | BaseException | None = None
        self._then: Then | None = None

    @property
    def is_over(self) -> bool:
        return self._outcome is not None

    @property
    def is_durable(self) -> bool:
        return isinstance(self._outcome, int)

    def settle(self, outcome: int | BaseException) -> None:
        """It is durable, or failed."""
        self._outcome = outcome
        if self._then is not None:
            self._tell(self._then, outcome)

    def then(self, do: Then) -> None:
        """One may wait."""
        self._then = do
        if self._outcome is not None:
            self._tell(do, self._outcome)

    def _tell(self, do: Then, outcome: int | BaseException) -> None:
        try:
            do(outcome if isinstance(outcome, BaseException) else None)
        except Exception as error:  # noqa: BLE001  # of whoever was told: others wait for the same commit
            context = {"message": "after an append", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def __await__(self) -> Generator[Any, None, int]:
        if self._outcome is None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _error: None if over.done() else over.set_result(None))
            yield from over
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None  # noqa: S101  # it is over
        return self._outcome


def when_over(append: Awaitable[int], do: Then) -> None:
    """Call `do` when `append`, of whichever store, is durable or has failed."""
    if isinstance(append, Append):
        append.then(do)
    else:
        asyncio.ensure_future(append).add_done_callback(lambda over: do(over.exception()))
