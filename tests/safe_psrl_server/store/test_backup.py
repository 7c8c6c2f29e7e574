"""Backups: complete or not at all, and nothing beside them is touched."""

import asyncio
from pathlib import Path

import pytest

from safe_psrl_server.store import StoreError
from safe_psrl_server.store.backup import copy_directory
from safe_psrl_server.store.interface import Append
from safe_psrl_server.store.sqlite.store import SqliteStore


def fill(directory: Path) -> None:
    async def commit() -> None:
        store = SqliteStore(directory)
        await store.open()
        await store.commit([Append("a", 0, [b"no event"])])
        await store.close()

    asyncio.run(commit())


def test_a_backup_that_fails_leaves_everything_beside_it_alone(tmp_path: Path) -> None:
    """Directories that look like its own drafts belong to another backup, which may be under way."""
    fill(tmp_path / "data")
    neighbours = [tmp_path / name for name in ("backup.partial", "backup.partial-1", "backup.new", "backup2")]
    for neighbour in neighbours:
        neighbour.mkdir()
        (neighbour / "kept").write_text("yes", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="agent a is damaged"):
        copy_directory(tmp_path / "data", tmp_path / "backup")
    assert [path for path in before if path.parent != tmp_path / "data"] == [
        path for path in sorted(tmp_path.rglob("*")) if path.parent != tmp_path / "data"
    ]


def test_a_backup_does_not_replace_a_directory(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    (tmp_path / "backup").mkdir()
    with pytest.raises(StoreError, match="exists already: choose a new directory"):
        copy_directory(tmp_path / "data", tmp_path / "backup")
    assert not list((tmp_path / "backup").iterdir())
