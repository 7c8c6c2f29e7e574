"""Copies a data directory while a server writes to it, or agents from one store to another. Every copy is read back.

SQLite's online backup reads the state of one commit and blocks no writer. A copy is a data directory with a commit counter
of its own, because the original's is ahead by the time the copy is complete. Nothing is overwritten.
"""

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.store import DamagedStreamError, EventStore, StoreError, VersionConflictError
from safe_psrl_server.store.checksums import MISMATCH
from safe_psrl_server.store.sqlite.directory import (
    COUNTER_FILE,
    CommitCounter,
    acknowledged_commits,
    heads_match,
    last_commit,
    require_commits,
)
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from safe_psrl_server.store.sqlite.streams import erase_remnants

PARTIAL: Final = ".partial-"  # marks the name of an incomplete copy


class Copied(NamedTuple):
    """What a copy contains, as counted by reading it back."""

    agents: int
    events: int  # after the agents' snapshots
    commits: int
    size: int  # bytes


def copy_directory(source: Path, destination: Path) -> Copied:
    """Copy the database of `source` into the new directory `destination`, which appears complete or not at all.

    Raises `StoreError` if there is nothing to copy, if `destination` exists, or if the copy is damaged.
    """
    if not (source / DATABASE_FILE).is_file():
        raise StoreError(f"{source} has no database {DATABASE_FILE}")
    if destination.exists():
        raise StoreError(f"{destination} exists already: choose a new directory")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{destination.name}{PARTIAL}", dir=destination.parent) as temporary:
            partial = Path(temporary) / destination.name
            partial.mkdir()
            commits = _copy_database(source, partial)
            agents, events = asyncio.run(_read_back(partial))
            partial.rename(destination)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"{source} cannot be copied to {destination}: {error}") from error
    return Copied(agents, events, commits, (destination / DATABASE_FILE).stat().st_size)


def _copy_database(source: Path, target: Path) -> int:
    """Copy in one step, and so from one transaction, on a read-only connection. Returns the last commit's number."""
    acknowledged = acknowledged_commits(source / COUNTER_FILE)  # before the copy, which must have as many
    reading = sqlite3.connect(f"{(source / DATABASE_FILE).absolute().as_uri()}?mode=ro", uri=True)
    writing = sqlite3.connect(target / DATABASE_FILE, isolation_level=None)
    try:
        reading.backup(writing)
        commit = last_commit(writing)
        if commit is None:
            raise StoreError(f"the database in {source} is damaged (no commit number): restore it from a backup")
        require_commits(source, acknowledged, commit.number)
        if not heads_match(writing, commit.heads):
            raise StoreError(f"the database in {source} {MISMATCH}")
        erase_remnants(writing)
    finally:
        writing.close()
        reading.close()
    counter = CommitCounter(target)
    counter.open()
    counter.write(commit.number)
    counter.close()
    return commit.number


async def _read_back(directory: Path) -> tuple[int, int]:
    """The number of agents and events, every checksum verified by the same fold as in the server."""
    store = SqliteStore(directory)
    await store.open()
    try:
        names, events = sorted(await store.heads()), 0
        for name in names:
            try:
                stream = await store.load(name)
                folded(name, stream)
                events += len(stream.events)
            except DamagedStreamError as error:
                raise StoreError(f"agent {name} is damaged: {error}") from error
    finally:
        await store.close()
    return len(names), events


@dataclass(frozen=True)
class CopiedAgent:
    """What was copied of one agent. A deleted one has no digest."""

    name: str
    version: int
    digest: str


async def names_to_copy(source: EventStore, target: EventStore) -> list[str]:
    """Every agent of `source`. Raises `StoreError` if one of them is in `target` already."""
    names = sorted(await source.heads())
    taken = sorted(set(names) & set(await target.heads()))
    if taken:
        raise StoreError(f"{len(taken)} agents exist in the target already, such as {taken[0]!r}; nothing was copied")
    return names


async def copy_agents(
    source: EventStore, target: EventStore, names: list[str], report: Callable[[str], None] = lambda _: None
) -> list[CopiedAgent]:
    """Copy `names`, one after the other. Raises `StoreError` at the first that cannot be copied; earlier copies remain."""
    copied = []
    for name in names:
        copied.append(await _copy_agent(source, target, name))
        report(name)
    return copied


async def _copy_agent(source: EventStore, target: EventStore, name: str) -> CopiedAgent:
    try:
        stream = await source.load(name)
        record = folded(name, stream)
        await target.restore(name, stream)
        found = folded(name, await target.load(name))
    except DamagedStreamError as error:
        raise StoreError(f"agent {name!r} is damaged: {error}") from error
    except VersionConflictError as error:
        raise StoreError(f"agent {name!r} was created meanwhile: {error}") from error
    if snapshot_of(found) != snapshot_of(record) or _digest(found) != _digest(record):
        raise StoreError(f"agent {name!r} differs from its source after copying: delete the new store and check its disk")
    return CopiedAgent(name, record.version, _digest(record))


def _digest(record: AgentRecord) -> str:
    return record.digest() if record.exists else ""


def main() -> None:
    """`python -m safe_psrl_server.store.backup SOURCE DESTINATION`: make one copy, in a separate process."""
    try:
        copy_directory(Path(sys.argv[1]), Path(sys.argv[2]))
    except StoreError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
