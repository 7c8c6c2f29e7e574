"""The census of agents is what counting them would give."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.snapshot import snapshot_of
from safe_psrl_server.store.postgres import PostgresStore
from safe_psrl_server.store.sqlite import FILE, SqliteStore

MakeSpec = Callable[..., model_pb2.AgentSpec]


def check(bench: Any, names: set[str]) -> None:
    hosted = bench.host.hosted()
    assert {agent.name for agent in hosted} == names
    assert len(bench.host.census) == len(names)
    assert all(name in bench.host.census for name in names)
    counted = sum(agent.record.definition.table_entries for agent in hosted if agent.record is not None)
    assert bench.host.census.table_entries == counted


async def test_agents_that_come_and_go_are_counted(make_bench: Callable[..., Any], make_spec: MakeSpec, tmp_path: Path) -> None:
    """Created, deleted, created anew with other tables, imported, read at a start, damaged."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    for name in "abc":
        await bench.commands.create(name, make_spec())
    check(bench, {"a", "b", "c"})
    await bench.commands.create("a", make_spec())  # once more changes nothing
    await bench.commands.delete("b")
    check(bench, {"a", "c"})
    await bench.commands.create("b", make_spec(horizon=100))
    await bench.commands.import_snapshot("d", snapshot_of(bench.host.record("a")))
    await bench.commands.delete("c")
    check(bench, {"a", "b", "d"})
    await bench.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("DELETE FROM events WHERE agent = 'a'")
        db.execute("DELETE FROM snapshots WHERE agent = 'a'")
    db.close()
    again = await make_bench(SqliteStore(tmp_path)).open()
    check(again, {"a", "b", "d"})
    assert next(agent for agent in again.host.hosted() if agent.name == "a").record is None
    await again.close()


async def test_agents_of_other_replicas_are_counted(make_bench: Callable[..., Any], make_spec: MakeSpec, database: str) -> None:
    """As soon as they are known."""
    here, there = [await make_bench(PostgresStore(database)).open() for _ in range(2)]
    for name in "abc":
        await here.commands.create(name, make_spec())
    await there.host.fresh_record("a")
    check(there, {"a"})
    await there.host.refresh()
    check(there, {"a", "b", "c"})
    await there.commands.delete("a")
    await here.host.refresh()
    check(here, {"b", "c"})
    for bench in (here, there):
        await bench.close()
