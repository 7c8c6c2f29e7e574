"""Copies of a data directory, taken while a server writes to it, and checked before they count.

The log is copied first: what is not in the database then is in the log, or in the database by the time that it is copied.
SQLite's online backup reads one state of it, that of one commit, and keeps no writer waiting. A copy is a data directory
itself, with a count of commits of its own: that of the original is ahead of it by the time that it is done.
"""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple

from safe_psrl_server.folding import folded
from safe_psrl_server.store.interface import DamagedStreamError, StoreError
from safe_psrl_server.store.journal import filed_commits
from safe_psrl_server.store.log import LOG, LogFile, following
from safe_psrl_server.store.sqlite import FILE, SqliteStore
from safe_psrl_server.store.witness import CommitWitness, noted_in

WITNESS = "commits"


class Copied(NamedTuple):
    """What is in a copy, all of it read back."""

    agents: int
    events: int  # after the agents' snapshots
    commits: int
    size: int  # bytes


def copy_directory(source: Path, destination: Path) -> Copied:
    """The database of `source` in the new directory `destination`, which is there as a whole or not at all.

    Raises `StoreError` if there is nothing to copy, if `destination` exists, or if the copy is damaged as the original may be.
    """
    if not (source / FILE).is_file():
        raise StoreError(f"{source} has no database {FILE}")
    if destination.exists():
        raise StoreError(f"{destination} exists already: choose a new directory")
    partial = destination.with_name(destination.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        acknowledged = _acknowledged(source / WITNESS)  # before anything is copied: the copy must have as much
        log = LogFile(source / LOG).read()
        (partial / LOG).write_bytes(log)
        filed = _copy_database(source / FILE, partial / FILE)
        commits = filed + len(following(log, filed, acknowledged))
        if commits < acknowledged:
            raise StoreError(
                f"{source} is {acknowledged - commits} commits behind what was acknowledged: its log was damaged. "
                f"Restore it from a backup; to go on with what is left, delete {source / WITNESS}"
            )
        _note(partial / WITNESS, commits)
        agents, events = asyncio.run(_read_back(partial))
        (partial / "lock").unlink()
        (partial / LOG).unlink()  # whoever read it back has filed it
        partial.rename(destination)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"{source} cannot be copied to {destination}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Copied(agents, events, commits, (destination / FILE).stat().st_size)


def _copy_database(source: Path, destination: Path) -> int:
    """In one step, so in one transaction; read-only, so that the server's log is left to the server. Returns the commits."""
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    writing = sqlite3.connect(destination)
    try:
        reading.backup(writing)
        commits = filed_commits(writing)
    finally:
        writing.close()
        reading.close()
    if commits is None:
        raise StoreError(f"{source} has no count of commits")
    return commits


def _acknowledged(path: Path) -> int:
    """What the original's count of commits says, which is left alone."""
    return noted_in(path.read_bytes()) if path.exists() else 0


def _note(path: Path, commits: int) -> None:
    witness = CommitWitness(path)
    witness.check(commits)
    witness.note(commits)
    witness.close()


async def _read_back(directory: Path) -> tuple[int, int]:
    """Agents and events, every link and digest checked as a server's start does, by the same fold."""
    store = SqliteStore(directory)
    await store.open()
    try:
        names, events = await store.agents(), 0
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
