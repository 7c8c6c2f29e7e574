"""Store addresses: `sqlite:DIRECTORY`, `postgresql://…` or `memory:`."""

from pathlib import Path

from safe_psrl_server.store.interface import EventStore, StoreError
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite.store import SqliteStore

POSTGRES = ("postgresql://", "postgres://")


def open_store(address: str) -> EventStore:
    """The store at `address`. Nothing is touched until its own `open`. Raises `StoreError`."""
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
