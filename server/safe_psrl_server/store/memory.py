"""Streams in memory: for tests, and for testbeds that need no durability."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from safe_psrl_server.store.interface import (
    NO_POLICIES,
    StoredStream,
    StoreFailedError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
    nothing,
)


@dataclass
class _Stream:
    version: int = 0
    snapshot_version: int = 0
    snapshot: bytes | None = None
    events: list[bytes] = field(default_factory=list)  # after the snapshot
    policies: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by episode; with the version that brought it

    def policies_after(self, version: int) -> dict[int, bytes]:
        return {episode: policy for episode, (came, policy) in self.policies.items() if came > version}


class MemoryStore:
    """Gone with the process."""

    is_shared = False
    is_gathering = False

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._failure: asyncio.Future[StoreFailedError] | None = None

    @property
    def failure(self) -> "asyncio.Future[StoreFailedError]":
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
        return self._failure

    async def open(self) -> None:
        pass

    async def agents(self) -> list[str]:
        return sorted(self._streams)

    async def load(self, agent: str) -> StoredStream:
        stream = self._streams.get(agent, _Stream())
        return StoredStream(stream.snapshot, list(stream.events), stream.version, stream.policies_after(0))

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        stream = self._streams.get(agent, _Stream())
        kept = after - stream.snapshot_version
        if not 0 <= kept <= len(stream.events):
            return None
        return StoredStream(None, list(stream.events[kept:]), stream.version, stream.policies_after(after))

    async def version(self, agent: str) -> int:
        return self._streams[agent].version if agent in self._streams else 0

    async def heads(self) -> dict[str, StreamHead]:
        return {agent: StreamHead(stream.version, stream.snapshot_version) for agent, stream in self._streams.items()}

    async def append(
        self,
        agent: str,
        expected_version: int,
        events: Sequence[bytes],
        policies: Mapping[int, bytes] = NO_POLICIES,
        dropped: Collection[int] = (),
        meanwhile: Callable[[], None] = nothing,  # noqa: ARG002  # nobody is kept waiting
    ) -> int:
        version = self._streams[agent].version if agent in self._streams else 0
        if version != expected_version:
            raise VersionConflictError(agent, expected_version, version)
        if events:
            stream = self._streams.setdefault(agent, _Stream())
            stream.events.extend(events)
            stream.version += len(events)
            version = stream.version
            for episode in dropped:
                stream.policies.pop(episode, None)
            stream.policies.update({episode: (version, policy) for episode, policy in policies.items()})
        return version

    def gather(self, work: Callable[[], None]) -> None:
        work()

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        stream = self._streams[agent]
        if stream.snapshot_version < version <= stream.version:
            del stream.events[: version - stream.snapshot_version]
            stream.snapshot, stream.snapshot_version = snapshot, version

    async def restore(self, agent: str, stream: StoredStream) -> None:
        version = await self.version(agent)
        if version:
            raise VersionConflictError(agent, 0, version)
        before = stream.version - len(stream.events)
        policies = {episode: (stream.version, policy) for episode, policy in stream.policies.items()}
        self._streams[agent] = _Stream(stream.version, before, stream.snapshot, list(stream.events), policies)

    def usage(self) -> StoreUsage | None:
        return None

    async def close(self) -> None:
        pass
