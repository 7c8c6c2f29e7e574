"""Taking turns: a fair lock whose place in the queue is taken without waiting."""

from asyncio import CancelledError, Future, get_running_loop
from collections import deque
from types import TracebackType
from typing import Self


class Turns:
    """One at a time, in the order of asking. Unlike asyncio's lock, a free turn costs no coroutine, and asking is at once."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        """Nobody has the turn, and nobody waits for it."""
        return not self._is_taken

    def take(self) -> "Future[None] | None":
        """None: the turn is ours. Else it will be when the future is done; wait for it with `arrival`."""
        if not self._is_taken:
            self._is_taken = True
            return None
        place: Future[None] = get_running_loop().create_future()
        self._waiting.append(place)
        return place

    async def arrival(self, place: "Future[None] | None") -> None:
        """Return when the turn is ours. If that is cancelled, the next one has it."""
        if place is None:
            return
        try:
            await place
        except CancelledError:
            if place.done() and not place.cancelled():  # it was handed to us just then
                self.give()
            raise

    def give(self) -> None:
        """Hand the turn to the next one who waits."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._is_taken = False

    async def __aenter__(self) -> Self:
        await self.arrival(self.take())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.give()
