"""Background tasks: referenced until they end, so that they are not collected, and their exceptions retrieved."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background(set["asyncio.Task[Any]"]):
    """The tasks that have not ended."""

    def start(self, work: Awaitable[Result]) -> "asyncio.Task[Result]":
        task: asyncio.Task[Result] = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self._forget)
        return task

    async def ended(self) -> None:
        """Return when there are none, however they ended."""
        while self:
            await asyncio.gather(*self, return_exceptions=True)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, even if the caller has gone away
