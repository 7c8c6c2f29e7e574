"""Questions that are asked at the same time, answered by one query."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
ReadAll = Callable[[Sequence[str]], Awaitable[Mapping[str, Answer]]]


class GroupedReads(Generic[Answer]):
    """One query at a time; whoever asks while it runs is in the next one. So an answer is never older than its question."""

    def __init__(self, read: ReadAll[Answer]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Mapping[str, Answer]] | None = None
        self._keys: set[str] = set()

    async def get(self, key: str) -> Answer | None:
        self._keys.add(key)
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return (await asyncio.shield(self._next)).get(key)

    async def _run(self) -> Mapping[str, Answer]:
        async with self._turn:
            keys, self._keys, self._next = self._keys, set(), None
            return await self._read(sorted(keys))
