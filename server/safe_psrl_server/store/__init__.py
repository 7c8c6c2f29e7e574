"""Where events are kept: one interface, `EventStore`, and one contract suite for all implementations.

A store's address is `sqlite:DIRECTORY`, `postgresql://…` or `memory:`.
"""

from pathlib import Path
from typing import Final

from safe_psrl_server.store.interface import (
    NO_POLICIES,
    Append,
    DamagedStreamError,
    EventStore,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUnavailableError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
)
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite.store import SqliteStore
from safe_psrl_server.store.summaries import FleetTotals, Order, Summary, SummaryQuery, Unsaved, key_of

__all__ = [
    "NO_POLICIES",
    "Append",
    "DamagedStreamError",
    "EventStore",
    "FleetTotals",
    "Order",
    "StoreError",
    "StoreFailedError",
    "StoreUnavailableError",
    "StoreUsage",
    "StoredStream",
    "StreamHead",
    "Summary",
    "SummaryQuery",
    "Unsaved",
    "VersionConflictError",
    "key_of",
    "open_store",
    "redacted_address",
]

POSTGRES: Final = ("postgresql://", "postgres://")


def open_store(address: str) -> EventStore:
    """The store at `address`, not opened yet: call its `open`. Raises `StoreError` for an invalid address."""
    scheme, colon, rest = address.partition(":")
    if scheme == "memory" and colon and not rest:
        return MemoryStore()
    if scheme == "sqlite" and rest:
        return SqliteStore(Path(rest))
    if address.startswith(POSTGRES):
        try:
            from safe_psrl_server.store.postgres.store import PostgresStore  # noqa: PLC0415  # needs an extra
        except ImportError:
            raise StoreError("PostgreSQL needs its driver: pip install 'safe-psrl[postgres]'") from None
        return PostgresStore(address)
    raise StoreError(f"store {address!r}: write sqlite:DIRECTORY, postgresql://USER@HOST/DATABASE or memory:")


def redacted_address(address: str) -> str:
    """The address without user name, password and parameters."""
    if address.startswith(("sqlite:", "memory:")):
        return address
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}://{rest.split('?', maxsplit=1)[0].rpartition('@')[2]}" if slashes else "PostgreSQL"
