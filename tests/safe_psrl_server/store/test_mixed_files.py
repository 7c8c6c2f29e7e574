"""Files of a SQLite store that are put together from different times: noticed, or a state that existed as a whole."""

import random
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from safe_psrl_server.store import NO_POLICIES, Append, DamagedStreamError, StoreError
from safe_psrl_server.store.sqlite.directory import COUNTER_FILE
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from tests.safe_psrl_server.store.appending import execute

WAL = f"{DATABASE_FILE}-wal"
State = dict[str, tuple[bytes, ...]]  # by agent: all its events


class Past:
    """Random commits to a SQLite store, what was stored after each of them, and its files at some times."""

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        self.directory = directory
        self.states: dict[int, State] = {}  # by commit
        self.images: list[dict[str, bytes]] = []
        self._chosen = chosen
        self._state: State = {f"agent-{i:03d}-{'x' * 120}": () for i in range(80)}  # their rows need several pages

    async def live(self) -> None:
        """Files are noted as a crash would leave them, and at last after a stop."""
        store = SqliteStore(self.directory)
        await store.open()
        await self._commit(store, list(self._state))
        for _ in range(4):
            for _ in range(self._chosen.randrange(1, 25)):
                await self._commit(store, self._chosen.sample(sorted(self._state), self._chosen.randrange(1, 4)))
            if self._chosen.random() < 0.6:
                execute(self.directory, "PRAGMA wal_checkpoint(TRUNCATE)")
            for _ in range(self._chosen.randrange(3)):
                await self._commit(store, self._chosen.sample(sorted(self._state), 1))
            self.images.append(self._files())
        await store.close()
        self.images.append(self._files())

    async def _commit(self, store: SqliteStore, names: list[str]) -> None:
        batch = []
        for name in names:
            stored = self._state[name]
            if stored and self._chosen.random() < 0.1:
                batch.append(Append(name, len(stored), (), NO_POLICIES, (), deleted=True))
                self._state[name] = ()
            else:
                events = [b"paused" if self._chosen.random() < 0.5 else b"resumed", self._chosen.randbytes(20).hex().encode()]
                batch.append(Append(name, len(stored), events))
                self._state[name] = (*stored, *events)
        assert await store.commit(batch) == set()
        self._note()
        for name in names:
            if self._state[name] and self._chosen.random() < 0.2:
                await store.save_snapshot(name, len(self._state[name]), b"|".join(self._state[name]))
                self._note()

    def _note(self) -> None:
        number = int((self.directory / COUNTER_FILE).read_bytes())
        self.states[number] = {name: events for name, events in self._state.items() if events}

    def _files(self) -> dict[str, bytes]:
        paths = (self.directory / name for name in (DATABASE_FILE, WAL, COUNTER_FILE))
        return {path.name: path.read_bytes() for path in paths if path.exists()}


async def outcomes(directory: Path, past: Past) -> Counter[str]:
    """Of each agent; what was stored must be a state that existed as a whole, except for damaged agents."""
    store, found = SqliteStore(directory), Counter[str]()
    try:
        await store.open()
        listed = await store.heads()
        ((number,),) = execute(directory, "SELECT number FROM commits")
        assert number >= int((directory / COUNTER_FILE).read_bytes()), "an acknowledged commit is missing"
        for name in {*listed, *past.states[number]}:
            try:
                stream = await store.load(name)
                events = (*(stream.snapshot.split(b"|") if stream.snapshot else ()), *stream.events)
                assert events == past.states[number].get(name), f"{name} is not what it was after commit {number}"
                found["exact"] += 1
            except DamagedStreamError:
                found["quarantined"] += 1
    except StoreError:
        return Counter(["refused"])
    finally:
        await store.close()
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_files_of_different_times_are_never_an_older_agent(tmp_path: Path, seed: int) -> None:
    """The database, its log and the commit counter, each of any of five times, the log also missing: refused, or exactly the
    state after one commit, which the counter does not exceed. Files of one time are accepted, however old."""
    past = Past(tmp_path / "data", random.Random(seed))
    await past.live()
    counts: Counter[str] = Counter()
    times = range(len(past.images))
    for main, log in product(times, (*times, None)):
        for counter in {0, main, log or 0, times[-1]}:
            files = {DATABASE_FILE: past.images[main][DATABASE_FILE], COUNTER_FILE: past.images[counter][COUNTER_FILE]}
            if log is not None and WAL in past.images[log]:
                files[WAL] = past.images[log][WAL]
            directory = tmp_path / "mixed"
            directory.mkdir()
            for name, content in files.items():
                (directory / name).write_bytes(content)
            found = await outcomes(directory, past)
            if files == past.images[main]:
                assert found == {"exact": len(past.states[int(files[COUNTER_FILE])])}
            counts += found
            shutil.rmtree(directory)
    assert counts["refused"] > 20
