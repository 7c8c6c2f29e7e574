"""Where events are kept. One interface, `EventStore`; one contract suite for all that implement it."""

from safe_psrl_server.store.interface import (
    DamagedStreamError,
    EventStore,
    OnCommit,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUsage,
    VersionConflictError,
)
from safe_psrl_server.store.opening import open_store

__all__ = [
    "DamagedStreamError",
    "EventStore",
    "OnCommit",
    "StoreError",
    "StoreFailedError",
    "StoreUsage",
    "StoredStream",
    "VersionConflictError",
    "open_store",
]
