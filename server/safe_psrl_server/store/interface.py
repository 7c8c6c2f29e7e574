"""The event store: per agent a stream of events, numbered from 1; the version of a stream is the number of its last event.

Its heart is compare-and-append: it is atomic, durable when it returns, and refuses if the stream has moved on. Payloads are
bytes that the store does not look into.

Beside a stream there are policies, by episode: what is too large for the history and not needed for long. They come and go
with the events that bring them and make them needless, in the same transaction.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

NO_POLICIES: Final[Mapping[int, bytes]] = MappingProxyType({})


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


class StoreFailedError(StoreError):
    """A commit failed. Nothing is known of it, so nothing more is accepted: the process must stop."""


class StoreUnavailableError(StoreError):
    """The store does not answer. What was being appended may or may not be there; it is found out by reading again."""


class VersionConflictError(Exception):
    """Somebody else appended first."""

    def __init__(self, agent: str, expected: int, found: int) -> None:
        super().__init__(f"the stream of {agent} is at version {found}, not {expected}")


class DamagedStreamError(Exception):
    """What is stored of an agent is not what was written."""


@dataclass(frozen=True)
class StoredStream:
    """What an agent is made of: a snapshot, if there is one, the events after it, and the policies that are kept beside."""

    snapshot: bytes | None
    events: list[bytes]
    version: int
    policies: dict[int, bytes] = field(default_factory=dict)  # by episode


class StreamHead(NamedTuple):
    """Where a stream ends, and up to where its newest snapshot reaches; 0 if it has none."""

    version: int
    snapshot_version: int


@dataclass(frozen=True)
class StoreUsage:
    """What a store takes of its disk, and what is left there."""

    used_bytes: int
    free_bytes: int


OnCommit = Callable[[float, int], None]  # told the seconds and the events of each commit, on the loop


def nothing() -> None:
    """What there is to do meanwhile."""


class EventStore(Protocol):
    """Opened by `open`, closed by `close`. Calls may overlap.

    A shared store has other writers too. All calls of it may raise `StoreUnavailableError`; they can be repeated.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes may append, so that what was read before may be out of date."""
        ...

    @property
    def failure(self) -> "Future[StoreFailedError]":
        """Done once a commit has failed."""
        ...

    @property
    def is_gathering(self) -> bool:
        """Whether what is appended now will be committed with what others append, so that it may as well be gathered."""
        ...

    async def open(self) -> None:
        """Make ready. Raises `StoreError` with what to do."""
        ...

    async def agents(self) -> list[str]:
        """Every name that anything is stored under, sorted."""
        ...

    async def load(self, agent: str) -> StoredStream:
        """All of a stream that is needed. An unknown agent has version 0. Raises `DamagedStreamError`."""
        ...

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        """The events after version `after`, and the policies that came with them; None if not all of them are kept, or if
        `after` is not of this stream any more: then `load` must be used. Raises `DamagedStreamError`."""
        ...

    async def version(self, agent: str) -> int:
        """The version of a stream now: what was appended before this call is in it."""
        ...

    async def heads(self) -> dict[str, StreamHead]:
        """The heads of all streams, by agent."""
        ...

    def append(
        self,
        agent: str,
        expected_version: int,
        events: Sequence[bytes],
        policies: Mapping[int, bytes] = NO_POLICIES,
        dropped: Collection[int] = (),
        meanwhile: Callable[[], None] = nothing,
    ) -> Awaitable[int]:
        """Append after `expected_version`; give the new version. Raises `VersionConflictError` and changes nothing.

        With the events come `policies`, and those of the episodes `dropped` go. If the caller is kept waiting for the disk,
        `meanwhile` may be done in that time: it must not raise, and says nothing about what becomes of the append."""
        ...

    def gather(self, work: Callable[[], None]) -> None:
        """Have `work`, which appends something or nothing, done right before the next commit, after what was gathered already.
        It must not raise. A store that does not gather does it at once."""
        ...

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        """Keep a snapshot of the stream at `version`. Events behind an older, verified snapshot are dropped."""
        ...

    async def restore(self, agent: str, stream: StoredStream) -> None:
        """Store a whole stream, as `load` gave it, for an agent that has none. Raises `VersionConflictError`."""
        ...

    def usage(self) -> StoreUsage | None:
        """As of now; None if the store is not on a disk of this machine. From any thread."""
        ...

    async def close(self) -> None:
        """Let go of everything. What was acknowledged is durable already."""
        ...
