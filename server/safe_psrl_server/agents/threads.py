"""Threads for work whose time grows with the size of an agent: loading, packing, checks, digests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

THREADS: Final = 4
Result = TypeVar("Result")


class Threads:
    """The service's own: those of the event loop may all be in use by the program that embeds it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, "worker")

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Work that has not begun is dropped if its caller goes away."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments))

    def close(self) -> None:
        self._executor.shutdown()
