"""The checksums of a stream: each event's is chained to that of the one before, a snapshot's ties it to its place."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from safe_psrl_server.store.interface import DamagedStreamError, StoredStream

FIRST_LINK: Final = bytes(8)
SnapshotRow = tuple[object, object, object, object]  # version, link, payload, digest, as a database gave them


class Link(NamedTuple):
    """A place in a stream: the number of an event, and its checksum."""

    version: int
    link: bytes


class EventRow(NamedTuple):
    """An event as it is stored."""

    version: int
    payload: bytes
    link: bytes


BEGINNING: Final = Link(0, FIRST_LINK)


def next_link(link: bytes, version: int, payload: bytes) -> bytes:
    """The checksum of an event, chained to that of the one before: a changed, lost or misplaced event breaks the chain."""
    return hashlib.blake2b(payload, digest_size=8, key=link + version.to_bytes(8, "little")).digest()


def chained(start: Link, payloads: Iterable[bytes]) -> list[EventRow]:
    """The rows of events that come after `start`."""
    rows, (version, link) = list[EventRow](), start
    for payload in payloads:
        version += 1
        link = next_link(link, version, payload)
        rows.append(EventRow(version, payload, link))
    return rows


def verified(start: Link, rows: Iterable[Sequence[object]], head: Link) -> list[bytes]:
    """The payloads of `rows`, each one checked, from `start` to `head`. Raises `DamagedStreamError`."""
    events, (version, link) = list[bytes](), start
    for number, payload, stored_link in rows:
        if not (isinstance(number, int) and isinstance(payload, bytes)):
            raise DamagedStreamError(f"event {version + 1} is unreadable")
        if number != version + 1:
            raise DamagedStreamError(f"event {version + 1} is missing")
        version, link = number, next_link(link, number, payload)
        if link != stored_link:
            raise DamagedStreamError(f"event {number} was changed")
        events.append(payload)
    if (version, link) != tuple(head):
        raise DamagedStreamError(f"it ends at event {version}; {head[0]} were acknowledged")
    return events


def snapshot_digest(agent: str, version: int, link: bytes, snapshot: bytes) -> bytes:
    """Ties a snapshot to its place in its stream."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (agent.encode(), version.to_bytes(8, "little"), link, snapshot):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def is_intact(agent: str, row: SnapshotRow) -> bool:
    """Whether a stored snapshot is what was written."""
    version, link, payload, digest = row
    if not (isinstance(version, int) and version > 0 and isinstance(link, bytes) and isinstance(payload, bytes)):
        return False
    return snapshot_digest(agent, version, link, payload) == digest


def rechained(stream: StoredStream) -> tuple[Link, list[EventRow]]:
    """The start of the chain of a whole stream that is stored again, at its snapshot or at the beginning, and its rows."""
    start = Link(stream.version - len(stream.events), FIRST_LINK)
    return start, chained(start, stream.events)
