"""Backups of a data directory at intervals, the newest ones kept.

A separate process makes each backup, so that reading every event back does not slow the service down. A backup's name is its
start time; after a restart the interval continues from the newest backup.
"""

import asyncio
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from safe_psrl_server.config import Backups, ConfigError
from safe_psrl_server.store.backup import PARTIAL

NAME: Final = "safe-psrl-%Y%m%dT%H%M%SZ"
COMMAND: Final = (sys.executable, "-m", "safe_psrl_server.store.backup")
log = structlog.get_logger()


class ScheduledBackup:
    """Backs `source` up into directories below `directory`, which must be used by one server only."""

    def __init__(self, source: Path, directory: Path, every_seconds: float, keep: int, registry: CollectorRegistry) -> None:
        self._source = source
        self._directory = directory
        self._every_seconds = every_seconds
        self._keep = keep
        self._started = time.time()
        age = Gauge(
            "safe_psrl_backup_age_seconds",
            "Age of the newest scheduled backup; without one, the time since the service started. Above twice the interval "
            "backups fail: see the log.",
            registry=registry,
        )
        age.set_function(lambda: time.time() - (self.newest() or self._started))
        interval = Gauge("safe_psrl_backup_interval_seconds", "Interval of scheduled backups.", registry=registry)
        interval.set(every_seconds)
        self._failures = Counter(
            "safe_psrl_backup_failures",
            "Scheduled backups that failed. Rising means a full disk, missing rights or damaged data: see the log.",
            registry=registry,
        )

    def newest(self) -> float | None:
        """When the newest complete backup began, in seconds since 1970."""
        complete = self._complete()
        return _time_of(complete[-1]) if complete else None

    async def run(self) -> None:
        """Back up whenever the interval has passed. Ends when it is cancelled."""
        while True:
            newest = await asyncio.to_thread(self.newest)
            await asyncio.sleep(0.0 if newest is None else newest + self._every_seconds - time.time())
            if not await self._back_up():
                await asyncio.sleep(self._every_seconds / 10)

    async def _back_up(self) -> bool:
        """Make one backup and drop the oldest ones. Returns whether it succeeded."""
        began = time.time()
        destination = self._directory / datetime.fromtimestamp(began, UTC).strftime(NAME)
        await asyncio.to_thread(self._drop_partial)
        try:
            await self._copy(destination)
        except OSError as error:
            self._failures.inc()
            log.error("backup failed", destination=str(destination), error=str(error))  # noqa: TRY400  # one line says it all
            return False
        dropped = await asyncio.to_thread(self._drop_oldest)
        log.info("backed up", destination=str(destination), seconds=round(time.time() - began, 3), dropped=dropped)
        return True

    async def _copy(self, destination: Path) -> None:
        """Raises `OSError` if the copy fails."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND, self._source, destination, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"exit code {process.returncode}")

    def _complete(self) -> list[Path]:
        """Complete backups, oldest first."""
        return sorted(path for path in self._directory.glob("safe-psrl-*") if _time_of(path) is not None)

    def _drop_oldest(self) -> int:
        excess = self._complete()[: -self._keep]
        for path in excess:
            shutil.rmtree(path, ignore_errors=True)
        return len(excess)

    def _drop_partial(self) -> None:
        """Remove the incomplete copy of a killed backup."""
        for path in self._directory.glob(f"safe-psrl-*{PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)


def scheduled_backup(store: str, settings: Backups, registry: CollectorRegistry) -> ScheduledBackup | None:
    """Scheduled backups of the store at this address, or None if no directory is configured. Raises `ConfigError`."""
    if settings.directory is None:
        return None
    scheme, _, source = store.partition(":")
    if scheme != "sqlite":
        raise ConfigError("backups.directory: only a store sqlite:DIR is backed up by the service; use PostgreSQL's tools")
    return ScheduledBackup(Path(source), settings.directory, settings.every_seconds, settings.keep, registry)


def _time_of(path: Path) -> float | None:
    try:
        return datetime.strptime(path.name, NAME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
