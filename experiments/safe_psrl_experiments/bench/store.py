"""`bench store`: commits to PostgreSQL, against bare inserts of as many rows in a transaction, in the same run.

Works in its own schema, which is dropped afterwards.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from safe_psrl_experiments.bench.measure import Report, Result, judged, silent
from safe_psrl_server.store.interface import Append
from safe_psrl_server.store.postgres.store import PostgresStore

SCHEMA: Final = "safe_psrl_bench"
PAYLOAD: Final = bytes(range(60))  # about an observed transition
AGENTS: Final = (1, 16, 64, 256)  # whose appends share a commit
TURN_SECONDS: Final = 0.5
BARE_TABLE: Final = "CREATE TABLE bare (agent TEXT, version BIGINT, payload BYTEA, link BYTEA, PRIMARY KEY (agent, version))"
BARE_INSERT: Final = "INSERT INTO bare SELECT * FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %b::bytea[])"


def bench_store(address: str, rounds: int = 15, report: Report = silent) -> list[Result]:
    return asyncio.run(_bench(address, rounds, report))


async def _bench(address: str, rounds: int, report: Report) -> list[Result]:
    async with await AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await connection.execute(f"SET search_path = {SCHEMA}")
        await connection.execute(BARE_TABLE)
        store = PostgresStore(make_conninfo("", **(conninfo_to_dict(address) | {"options": f"-csearch_path={SCHEMA}"})))
        await store.open()
        try:
            return [await _compare(store, connection, agents, rounds, report) for agents in AGENTS]
        finally:
            await store.close()
            await connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


async def _compare(
    store: PostgresStore, connection: "AsyncConnection[Any]", agents: int, rounds: int, report: Report
) -> Result:
    """Appends per second in commits of that many agents, against rows per second in transactions of as many rows."""
    report(f"{agents} agents per commit")
    names = [f"{agents}-{number}" for number in range(agents)]

    async def commit(version: int) -> None:
        await store.commit([Append(name, version, [PAYLOAD]) for name in names])

    async def insert(version: int) -> None:
        await connection.execute(BARE_INSERT, (names, [version] * agents, [PAYLOAD] * agents, [bytes(8)] * agents))

    versions, rates = {commit: 0, insert: 0}, {commit: list[float](), insert: list[float]()}
    for _ in range(rounds + 1):
        for write in (commit, insert):
            written, rate = await _rate(write, versions[write])
            versions[write] += written
            rates[write].append(rate * agents)
    name = f"appends of {agents} agents, one commit"
    return judged(name, median(rates[commit][1:]), median(rates[insert][1:]), f"bare rows, {agents} a commit", "/s")


async def _rate(write: Callable[[int], Awaitable[None]], version: int) -> tuple[int, float]:
    """How often `write` was called, with versions from `version` on, and how often per second."""
    began, written = time.perf_counter(), 0
    while time.perf_counter() - began < TURN_SECONDS:
        await write(version + written)
        written += 1
    return written, written / (time.perf_counter() - began)
