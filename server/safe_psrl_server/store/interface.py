"""The event store: per agent a stream of events, numbered from 1; the version of a stream is the number of its last event.

Its heart is compare-and-append: it is atomic, durable when it returns, and refuses if the stream has moved on. Payloads are
bytes that the store does not look into.
"""

import hashlib
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


class StoreFailedError(StoreError):
    """A commit failed. Nothing is known of it, so nothing more is accepted: the process must stop."""


class VersionConflictError(Exception):
    """Somebody else appended first."""

    def __init__(self, agent: str, expected: int, found: int) -> None:
        super().__init__(f"the stream of {agent} is at version {found}, not {expected}")


class DamagedStreamError(Exception):
    """What is stored of an agent is not what was written."""


@dataclass(frozen=True)
class StoredStream:
    """What an agent is made of: a snapshot, if there is one, and the events after it."""

    snapshot: bytes | None
    events: list[bytes]
    version: int


@dataclass(frozen=True)
class StoreUsage:
    """What a store takes of its disk, and what is left there."""

    used_bytes: int
    free_bytes: int


OnCommit = Callable[[float, int], None]  # told the seconds and the events of each commit, from the thread that writes


class EventStore(Protocol):
    """Opened by `open`, closed by `close`. Calls may overlap."""

    @property
    def failure(self) -> "Future[StoreFailedError]":
        """Done once a commit has failed."""
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

    async def append(self, agent: str, expected_version: int, events: Sequence[bytes]) -> int:
        """Append after `expected_version`; return the new version. Raises `VersionConflictError` and changes nothing."""
        ...

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        """Keep a snapshot of the stream at `version`. Events behind an older, verified snapshot are dropped."""
        ...

    def usage(self) -> StoreUsage | None:
        """As of now; None if the store is not on a disk of this machine. From any thread."""
        ...

    async def close(self) -> None:
        """Let go of everything. What was acknowledged is durable already."""
        ...


def next_link(link: bytes, version: int, payload: bytes) -> bytes:
    """The checksum of an event, chained to that of the one before: a changed, lost or misplaced event breaks the chain."""
    return hashlib.blake2b(payload, digest_size=8, key=link + version.to_bytes(8, "little")).digest()


FIRST_LINK = bytes(8)


def snapshot_digest(agent: str, version: int, link: bytes, snapshot: bytes) -> bytes:
    """Ties a snapshot to its place in its stream."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (agent.encode(), version.to_bytes(8, "little"), link, snapshot):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
