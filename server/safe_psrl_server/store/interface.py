"""The event store: one stream of events per agent, numbered from 1; a stream's version is the number of its last event.

A commit appends to many streams at once. Each append names the version it was decided for and is rejected if the stream has
moved on (compare-and-append). Payloads are bytes that the store does not interpret.

Policies that are too large for the events are stored outside the stream, by episode. They are added and dropped in the same
transaction as the events that refer to them or make them obsolete.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from safe_psrl_server.store.summaries import NOTHING_UNSAVED, FleetTotals, Summary, SummaryQuery, Unsaved

NO_POLICIES: Final[Mapping[int, bytes]] = MappingProxyType({})


class StoreError(Exception):
    """The store cannot be opened or used. The message says what to do."""


class StoreFailedError(StoreError):
    """A commit failed and its outcome is unknown: the process must stop."""


class StoreUnavailableError(StoreError):
    """The store does not respond. The outcome of a commit is unknown; reading the stream again determines it."""


class VersionConflictError(Exception):
    """The stream is not at the expected version."""

    def __init__(self, agent: str, expected: int, found: int) -> None:
        super().__init__(f"the stream of {agent} is at version {found}, expected {expected}")


class DamagedStreamError(Exception):
    """The stored data of an agent is damaged."""


class Append(NamedTuple):
    """Events for one stream, valid only at `expected_version`. Without events it checks the version and changes nothing.

    With `deleted` the stream is removed instead, with its events, snapshots and policies; `events` and policies are ignored.
    The next append, with `expected_version` 0, starts a new stream.
    """

    agent: str
    expected_version: int
    events: Sequence[bytes]
    policies: Mapping[int, bytes] = NO_POLICIES  # by episode, added with the events
    dropped_policies: Collection[int] = ()  # episodes whose policy is deleted with the events
    deleted: bool = False


@dataclass(frozen=True)
class StoredStream:
    """The newest intact snapshot, the events after it, and the policies stored outside the stream."""

    snapshot: bytes | None
    events: list[bytes]
    version: int
    policies: dict[int, bytes] = field(default_factory=dict)  # by episode


class StreamHead(NamedTuple):
    """The version of a stream and of its newest snapshot (0 if it has none)."""

    version: int
    snapshot_version: int


@dataclass(frozen=True)
class StoreUsage:
    """Disk space used by the store, and free on its disk."""

    used_bytes: int
    free_bytes: int


class EventStore(Protocol):
    """Opened by `open`, closed by `close`; calls may overlap. A shared store may raise `StoreUnavailableError` from any call;
    the call can be repeated."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may append, so that what was read before may be outdated."""
        ...

    async def open(self) -> None:
        """Open the store. Raises `StoreError` with what to do."""
        ...

    async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:
        """The heads of those of `agents` that exist, or of all streams, which may take long. A stream whose head row is lost
        has version 0."""
        ...

    async def load(self, agent: str) -> StoredStream:
        """The stored data from which an agent is rebuilt. An unknown agent has version 0. Raises `DamagedStreamError`."""
        ...

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        """The events after version `after` and the policies that came with them; None if `load` must be used instead, because
        not all of these events are kept, or the stream never was at `after`. Raises `DamagedStreamError`."""
        ...

    async def commit(self, appends: Sequence[Append]) -> set[str]:
        """Apply `appends`, at most one per agent, in one transaction that is durable on return.

        Returns the agents whose stream was not at the expected version; their appends changed nothing. In a shared store
        that includes a stream that was deleted and created again since this store read or wrote it, whatever its version.
        Raises `StoreFailedError`, after which the store accepts nothing more.
        """
        ...

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        """Keep a snapshot of the stream at `version` and drop the events behind the previous one. A snapshot of a stream that
        was deleted meanwhile is ignored. Raises `DamagedStreamError`."""
        ...

    async def restore(self, agent: str, stream: StoredStream) -> None:
        """Store a whole stream, as returned by `load`, for an agent that has none. Raises `VersionConflictError`."""
        ...

    async def save_summaries(self, rows: Sequence[Summary]) -> None:
        """Keep summaries, at most one per agent. One that is older than what is stored, or of a stream that does not exist, is
        ignored."""
        ...

    async def find_summaries(self, query: SummaryQuery, unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        """Summaries in the order of the query, as if `unsaved` were stored. Like all reads, it does not wait for commits."""
        ...

    async def summaries_of(self, agents: Collection[str], unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        """The summaries of those `agents` that have one, as if `unsaved` were stored."""
        ...

    async def summarised_agents(self, unsaved: Unsaved = NOTHING_UNSAVED) -> list[str]:
        """The names of all agents that have a summary, as if `unsaved` were stored."""
        ...

    async def totals(self, unsaved: Unsaved = NOTHING_UNSAVED) -> FleetTotals:
        """Totals over all summaries, as if `unsaved` were stored."""
        ...

    async def outdated_summaries(self) -> dict[str, int]:
        """Agents whose summary and stream have different versions, with the version of the summary, 0 if it is missing.
        If rows were damaged, all agents."""
        ...

    def forget(self, agent: str) -> None:
        """Forget what is cached of the agent. The caller loads the agent before it appends to it again."""
        ...

    def usage(self) -> StoreUsage | None:
        """Disk usage; None if the store is not on a disk of this machine. Callable from any thread."""
        ...

    async def close(self) -> None:
        """Release all resources. Acknowledged commits are already durable."""
        ...
