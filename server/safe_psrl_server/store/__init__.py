"""Where events are kept. One interface, `EventStore`; one contract suite for all that implement it."""

from safe_psrl_server.store.address import shown_address
from safe_psrl_server.store.interface import (
    NO_POLICIES,
    DamagedStreamError,
    EventStore,
    OnCommit,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUnavailableError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
    nothing,
)
from safe_psrl_server.store.opening import open_store

__all__ = [
    "NO_POLICIES",
    "DamagedStreamError",
    "EventStore",
    "OnCommit",
    "StoreError",
    "StoreFailedError",
    "StoreUnavailableError",
    "StoreUsage",
    "StoredStream",
    "StreamHead",
    "VersionConflictError",
    "nothing",
    "open_store",
    "shown_address",
]
