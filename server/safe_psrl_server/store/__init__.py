"""Where events are kept: one interface, `EventStore`, and one contract suite for all implementations."""

from safe_psrl_server.store.address import open_store, redacted_address
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
