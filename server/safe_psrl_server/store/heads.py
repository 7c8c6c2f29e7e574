"""The head record: one digest over the heads of all streams, stored by each commit together with what it changes.

Each stream's row has a digest of itself. The record is the XOR of these digests, so a commit updates it from the rows that it
changes. Opening a store compares the two. They differ if files or rows from different times were combined, or if rows are
missing: each stream alone may still be intact, but older than what was acknowledged.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from hashlib import blake2b
from operator import xor
from struct import Struct
from typing import Final

from safe_psrl_server.store.chain import Link

MISMATCH: Final = (
    "does not match its head record: files or rows from different times were combined, or rows are missing. "
    "Restore the whole store from a backup"
)
INTEGER: Final = Struct("<q")
HeadRow = Sequence[object]  # agent, version, link, digest, as a database gave them


def head_digest(agent: str, head: Link) -> int:
    """Of a stream's row, as a signed integer of 64 bits. 0 for a stream that does not exist."""
    version, link = head
    if not version:
        return 0
    digest: int
    (digest,) = INTEGER.unpack(blake2b(INTEGER.pack(version) + link + agent.encode(), digest_size=8).digest())
    return digest


def is_intact_head(row: HeadRow) -> bool:
    """Whether a stream's row is what was written."""
    agent, version, link, digest = row
    if not (isinstance(agent, str) and isinstance(version, int) and isinstance(link, bytes)):
        return False
    return head_digest(agent, Link(version, link)) == digest


def explains(record: int, rows: Iterable[HeadRow], tails: Iterable[Sequence[object]]) -> bool:
    """Whether damaged and missing rows alone explain that the digests of `rows` do not give `record`.

    `tails` has agent, version and link of the last event or snapshot of each agent. For agents without an intact row, they
    are what the row was. If the record then matches, every other agent is up to date; those without an intact row cannot be
    loaded and are quarantined.
    """
    intact = [(row[0], row[3]) for row in rows if is_intact_head(row)]
    digests = dict(intact)
    if len(digests) < len(intact):
        return False
    for agent, version, link in tails:
        if agent not in digests and isinstance(agent, str) and isinstance(version, int) and isinstance(link, bytes):
            digests[agent] = head_digest(agent, Link(version, link))
    return total(digests.values()) == record


def total(digests: Iterable[object]) -> int:
    """The head record of streams whose rows have these digests. Raises TypeError if one is not an integer."""
    return reduce(xor, digests, 0)
