"""Backups that the service makes by itself: complete, as many as asked for, and reported when they fail."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from safe_psrl_server.config import ConfigError, ServerConfig
from safe_psrl_server.server import Server
from safe_psrl_server.store import Append
from safe_psrl_server.store.backup import PARTIAL, copy_directory
from safe_psrl_server.store.scheduled_backup import ScheduledBackup
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.system.server_process import wait_until

OLD = "safe-psrl-20200102T030405Z"
OLDER = "safe-psrl-20190102T030405Z"


class Scene:
    """A data directory with a commit, and its scheduled backups."""

    def __init__(self, root: Path, keep: int = 2, every_seconds: float = 3600.0) -> None:
        self.data, self.backups = root / "data", root / "backups"
        self.registry = CollectorRegistry()
        self.schedule = ScheduledBackup(self.data, self.backups, every_seconds, keep, self.registry)

    async def fill(self) -> None:
        store = SqliteStore(self.data)
        await store.open()
        await store.commit([Append("none", 0, ())])
        await store.close()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.backups.glob("*"))

    def value(self, name: str) -> float:
        found = self.registry.get_sample_value(f"safe_psrl_backup_{name}")
        assert found is not None
        return found

    async def run_until(self, condition: Callable[[], bool]) -> None:
        running = asyncio.create_task(self.schedule.run())
        await asyncio.to_thread(wait_until, condition, 60.0, "the backup ends")
        running.cancel()
        await asyncio.wait([running])


async def test_a_backup_is_made_verified_and_the_oldest_dropped(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.fill()
    for name in (OLD, OLDER, f"{OLD}{PARTIAL}abc", "safe-psrl-mine", "other"):
        (scene.backups / name).mkdir(parents=True)
    await scene.run_until(lambda: OLDER not in scene.names())
    other, kept, newest, mine = scene.names()
    assert (other, kept, mine) == ("other", OLD, "safe-psrl-mine")
    assert scene.value("age_seconds") < 60
    assert scene.value("failures_total") == 0
    assert await asyncio.to_thread(copy_directory, scene.backups / newest, tmp_path / "restored")


async def test_the_interval_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A new backup is not due: nothing is written, and no damage is found."""
    scene = Scene(tmp_path, every_seconds=1e9)
    (scene.backups / OLD).mkdir(parents=True)
    running = asyncio.create_task(scene.schedule.run())
    done, _ = await asyncio.wait([running], timeout=0.5)
    assert not done
    running.cancel()
    await asyncio.wait([running])
    assert scene.names() == [OLD]
    assert scene.value("failures_total") == 0
    assert scene.value("age_seconds") > 1e8


async def test_a_failed_backup_is_counted_and_drops_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, keep=1)
    for name in (OLD, OLDER):
        (scene.backups / name).mkdir(parents=True)
    await scene.run_until(lambda: scene.value("failures_total") == 1)
    assert scene.names() == [OLDER, OLD]
    assert scene.value("age_seconds") > 1e8


def test_without_a_backup_its_age_is_the_time_since_the_start(tmp_path: Path) -> None:
    assert 0 <= Scene(tmp_path).value("age_seconds") < 60


@pytest.mark.parametrize("store", ["memory:", "postgresql://nowhere/none"])
async def test_only_an_embedded_store_is_backed_up(store: str, tmp_path: Path) -> None:
    server = Server(ServerConfig.model_validate({"store": store, "backups": {"directory": tmp_path}}))
    with pytest.raises(ConfigError, match=r"backups\.directory: only a store sqlite:DIR"):
        await server.start()
