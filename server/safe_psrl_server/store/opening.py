"""A store from the address that a user writes."""

from pathlib import Path

from safe_psrl_server.store.interface import EventStore, OnCommit, StoreError
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite import SqliteStore


def open_store(address: str, on_commit: OnCommit = lambda _seconds, _events: None) -> EventStore:
    """`sqlite:DIRECTORY` or `memory:`. Nothing is touched until the store's own `open`."""
    scheme, colon, rest = address.partition(":")
    if scheme == "memory" and colon and not rest:
        return MemoryStore()
    if scheme == "sqlite" and rest:
        return SqliteStore(Path(rest), on_commit)
    raise StoreError(f"store {address!r}: write sqlite:DIRECTORY or memory:")
