"""The checksums of a store: one for each event and snapshot, and the head record over all streams.

An event's checksum is chained to that of the event before it; a snapshot's ties it to its place in its stream.

Each stream's row has a digest of itself. The head record is the XOR of these digests. Each commit updates it for the rows
that it changes, in the same transaction. Opening a store compares the record with the rows. They differ if files or rows from
different times were combined, or if rows are missing: each single stream may then be intact, but older than what was
acknowledged.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from hashlib import blake2b
from operator import xor
from struct import Struct
from typing import Final, NamedTuple

from safe_psrl_server.store.interface import DamagedStreamError, StoredStream

FIRST_LINK: Final = bytes(8)
SnapshotRow = tuple[object, object, object, object]  # version, link, payload, digest, as a database gave them
MISMATCH: Final = (
    "does not match its head record: files or rows from different times were combined, or rows are missing. "
    "Restore the whole store from a backup"
)
INTEGER: Final = Struct("<q")
HeadRow = Sequence[object]  # agent, version, link, digest, as a database gave them


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
    return blake2b(payload, digest_size=8, key=link + version.to_bytes(8, "little")).digest()


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
    """The digest of a snapshot and of its place in its stream."""
    digest = blake2b(digest_size=16)
    for part in (agent.encode(), version.to_bytes(8, "little"), link, snapshot):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def is_intact(agent: str, row: SnapshotRow) -> bool:
    """Whether a stored snapshot is unchanged."""
    version, link, payload, digest = row
    if not (isinstance(version, int) and version > 0 and isinstance(link, bytes) and isinstance(payload, bytes)):
        return False
    return snapshot_digest(agent, version, link, payload) == digest


def rechained(stream: StoredStream) -> tuple[Link, list[EventRow]]:
    """The start of the chain of a whole stream that is stored again, at its snapshot or at the beginning, and its rows."""
    start = Link(stream.version - len(stream.events), FIRST_LINK)
    return start, chained(start, stream.events)


def head_digest(agent: str, head: Link) -> int:
    """The digest of a stream's row, as a signed 64-bit integer; 0 for a stream that does not exist."""
    version, link = head
    if not version:
        return 0
    digest: int
    (digest,) = INTEGER.unpack(blake2b(INTEGER.pack(version) + link + agent.encode(), digest_size=8).digest())
    return digest


def is_intact_head(row: HeadRow) -> bool:
    """Whether a stream's row is unchanged."""
    agent, version, link, digest = row
    if not (isinstance(agent, str) and isinstance(version, int) and isinstance(link, bytes)):
        return False
    return head_digest(agent, Link(version, link)) == digest


def explains(record: int, rows: Iterable[HeadRow], tails: Iterable[Sequence[object]]) -> bool:
    """Whether damaged and missing rows are the only reason why the digests of `rows` do not give `record`.

    `tails` has agent, version and link of the last event or snapshot of each agent. For agents without an intact row, the row
    is reconstructed from them. If the record then matches, every other agent is up to date; those without an intact row cannot
    be loaded and are quarantined.
    """
    intact = [(row[0], row[3]) for row in rows if is_intact_head(row)]
    digests = dict(intact)
    if len(digests) < len(intact):
        return False
    for agent, version, link in tails:
        if agent not in digests and isinstance(agent, str) and isinstance(version, int) and isinstance(link, bytes):
            digests[agent] = head_digest(agent, Link(version, link))
    return head_record(digests.values()) == record


def head_record(digests: Iterable[object]) -> int:
    """The head record of streams whose rows have these digests. Raises TypeError if one is not an integer."""
    return reduce(xor, digests, 0)
