from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from safe_psrl_server.store.sqlite.store import SqliteStore


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An open store in `tmp_path`."""
    store = SqliteStore(tmp_path)
    await store.open()
    yield store
    await store.close()
