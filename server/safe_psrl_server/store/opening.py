"""A store from the address that a user writes."""

from pathlib import Path

from safe_psrl_server.store.interface import EventStore, OnCommit, StoreError
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite import SqliteStore

POSTGRES = ("postgresql://", "postgres://")


def open_store(address: str, on_commit: OnCommit = lambda _seconds, _events: None) -> EventStore:
    """`sqlite:DIRECTORY`, `postgresql://…` or `memory:`. Nothing is touched until the store's own `open`."""
    scheme, colon, rest = address.partition(":")
    if scheme == "memory" and colon and not rest:
        return MemoryStore()
    if scheme == "sqlite" and rest:
        return SqliteStore(Path(rest), on_commit)
    if address.startswith(POSTGRES):
        try:
            from safe_psrl_server.store.postgres import PostgresStore  # noqa: PLC0415  # needs an extra
        except ImportError:
            raise StoreError("PostgreSQL needs its driver: pip install 'safe-psrl[postgres]'") from None
        return PostgresStore(address, on_commit)
    raise StoreError(f"store {address!r}: write sqlite:DIRECTORY, postgresql://USER@HOST/DATABASE or memory:")
