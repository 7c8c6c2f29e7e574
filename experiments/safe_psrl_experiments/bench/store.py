"""`bench store`: appends to PostgreSQL, against bare inserts of as many rows in a transaction, in the same run.

Works in a schema of its own, which is dropped afterwards.
"""

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from safe_psrl_experiments.bench.measure import Result, judged
from safe_psrl_server.store.postgres.store import PostgresStore

SCHEMA: Final = "safe_psrl_bench"
PAYLOAD: Final = bytes(range(60))  # about an observed transition
AGENTS: Final = (1, 16, 64, 256)  # that append at the same time, one event after the other
TURN_SECONDS: Final = 0.5
BARE_TABLE: Final = "CREATE TABLE bare (agent TEXT, version BIGINT, payload BYTEA, link BYTEA, PRIMARY KEY (agent, version))"
BARE_INSERT: Final = "INSERT INTO bare SELECT * FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %b::bytea[])"


def bench_store(address: str, rounds: int = 15, report: Callable[[str], None] = lambda _: None) -> list[Result]:
    return asyncio.run(_bench(address, rounds, report))


async def _bench(address: str, rounds: int, report: Callable[[str], None]) -> list[Result]:
    async with await AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await connection.execute(f"SET search_path = {SCHEMA}")
        await connection.execute(BARE_TABLE)
        try:
            return [await _compare(address, connection, agents, rounds, report) for agents in AGENTS]
        finally:
            await connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


async def _compare(
    address: str, connection: "AsyncConnection[Any]", agents: int, rounds: int, report: Callable[[str], None]
) -> Result:
    """Appends a second with so many agents at once, against rows a second in transactions of as many rows."""
    report(f"{agents} agents at once")
    sizes: list[int] = []
    place = make_conninfo("", **(conninfo_to_dict(address) | {"options": f"-csearch_path={SCHEMA}"}))
    store = PostgresStore(place, lambda _seconds, events: sizes.append(events))
    await store.open()
    writers = [_Writer(store, f"{agents}-{number}") for number in range(agents)]
    bare = _Bare(connection, agents)
    appended, inserted = list[float](), list[float]()
    for _ in range(rounds + 1):
        appended.append(await _rate(writers))
        inserted.append(await _rate([bare]))
    await store.close()
    name = f"appends of {agents} agents, {sum(sizes) / len(sizes):.0f} a commit"
    return judged(name, median(appended[1:]), median(inserted[1:]), f"bare rows, {agents} a commit", "/s")


class _Writer:
    def __init__(self, store: PostgresStore, agent: str) -> None:
        self._store = store
        self._agent = agent
        self._version = 0

    async def write(self) -> int:
        self._version = await self._store.append(self._agent, self._version, [PAYLOAD])
        return 1


class _Bare:
    def __init__(self, connection: "AsyncConnection[Any]", rows: int) -> None:
        self._connection = connection
        self._agents = [f"{rows}-{number}" for number in range(rows)]
        self._version = 0

    async def write(self) -> int:
        rows = len(self._agents)
        self._version += 1
        values = (self._agents, [self._version] * rows, [PAYLOAD] * rows, [bytes(8)] * rows)
        await self._connection.execute(BARE_INSERT, values)
        return rows


async def _rate(writers: "list[_Writer] | list[_Bare]") -> float:
    """Rows a second."""
    began = time.perf_counter()

    async def repeat(writer: _Writer | _Bare) -> int:
        written = 0
        while time.perf_counter() - began < TURN_SECONDS:
            written += await writer.write()
        return written

    written = sum(await asyncio.gather(*map(repeat, writers)))
    return written / (time.perf_counter() - began)
