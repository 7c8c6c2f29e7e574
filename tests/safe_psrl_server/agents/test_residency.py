"""Which agents are in memory: they come when they are used, and the least recently used leave."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_experiments.bench.history import history
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.history import MOST_POINTS
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.residency import estimated_bytes
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import LimitExceededError, NotFoundError
from safe_psrl_server.security.quotas import reserved_room
from safe_psrl_server.store import StoredStream, SummaryQuery
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_spec


def moved(state: int = 0, action: int = 1, next_state: int = 2) -> control_pb2.Transition:
    return control_pb2.Transition(state=state, action=action, next_state=next_state)


def in_memory(bench: Bench) -> list[str]:
    return [agent.name for agent in bench.agents.registry.members]


async def test_the_least_recently_used_agent_leaves(new_bench: NewBench) -> None:
    bench = await new_bench(max_resident_agents=2)
    await bench.create("a", "b")
    await bench.agents.record("a")
    await bench.create("c")
    assert in_memory(bench) == ["a", "c"]
    assert bench.agents.registry.members.evictions == 1
    assert (await bench.agents.record("b")).exists
    assert in_memory(bench) == ["c", "b"]


async def test_agents_leave_when_their_tables_take_too_much_memory(new_bench: NewBench) -> None:
    bench = await new_bench(max_resident_bytes=1)
    await bench.create("a", "b", "c")
    assert in_memory(bench) == ["c"], "one that is used stays, however large"
    members = bench.agents.registry.members
    members.remove("c")
    assert members.bytes == 0


def test_the_estimated_memory_is_enough_for_an_agent_with_a_long_history() -> None:
    record = AgentRecord("a")
    for event in history(MOST_POINTS * 10):
        record.apply(events_pb2.Event.FromString(event.SerializeToString()))
    stream = StoredStream(snapshot_of(record).SerializeToString(), [], record.version)
    folded("a", stream)  # what is loaded once
    tracemalloc.start()
    try:
        loaded = folded("a", stream)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(loaded.series.points) == MOST_POINTS
    assert estimated_bytes(loaded) / 3 < size < estimated_bytes(loaded)


async def test_an_agent_with_an_open_episode_leaves_and_goes_on(new_bench: NewBench, tmp_path: Path) -> None:
    bench = await new_bench(f"sqlite:{tmp_path}", max_resident_agents=1)
    await bench.create()
    started = await bench.started(request_id="first")
    first = await bench.report(moved(), episode=1, step=0)
    digest = bench.record().digest()
    await bench.create("b")
    assert in_memory(bench) == ["b"]
    assert await bench.started(request_id="first") == started, "the same request has the same reply"
    again = await bench.report(moved(), episode=1, step=0)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert bench.record().digest() == digest
    assert await bench.is_verified()


async def test_calls_for_an_absent_agent_load_it_once(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await new_bench(max_resident_agents=1)
    await bench.begin()
    await bench.create("b")
    loads, load = list[str](), bench.store.load

    async def counted(agent: str) -> Any:
        loads.append(agent)
        return await load(agent)

    monkeypatch.setattr(bench.store, "load", counted)
    replies = await asyncio.gather(*(bench.report(moved(), episode=1, step=0) for _ in range(5)), bench.agents.record("a"))
    assert loads == ["a"]
    assert sum(reply.duplicate for reply in replies[:5]) == 4
    assert bench.agents.runtime.hits < 10


async def test_an_agent_with_calls_under_way_stays(new_bench: NewBench) -> None:
    bench = await new_bench(max_resident_agents=1)
    await bench.begin()
    async with bench.agents.runtime.exclusive("a"):
        await bench.create("b", "c")
        assert in_memory(bench) == ["a", "c"]
    await bench.create("d")
    assert in_memory(bench) == ["d"]


async def test_nothing_is_lost_or_done_twice_with_three_times_as_many_agents_as_fit(
    new_bench: NewBench, tmp_path: Path
) -> None:
    bench, names = await new_bench(f"sqlite:{tmp_path}", every_events=9, max_resident_agents=4), [f"a{i}" for i in range(12)]
    await bench.create(*names)

    async def play(name: str) -> None:
        for episode in range(1, 6):
            await bench.start(name, abandon_open=True)
            for step in range(3):
                moves = [moved(0), moved(2), moved(2)]
                assert not (await bench.report(moves[step], name, episode=episode, step=step)).duplicate
                assert (await bench.report(moves[step], name, episode=episode, step=step)).duplicate
                assert len(bench.agents.registry.members) <= 4 + len(names), "those with calls stay"

    await asyncio.gather(*map(play, names))
    assert len(in_memory(bench)) <= 4
    for name in names:
        record = await bench.agents.record(name)
        assert (record.totals.transitions, record.totals.completed_episodes) == (15, 5)
        assert await bench.is_verified(name)
    assert bench.agents.registry.members.evictions > len(names)


async def test_a_start_reads_no_agents_and_knows_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await Bench(f"sqlite:{tmp_path}").open()
    await first.create("a", "b", "c")
    entries = first.agents.registry.size.table_entries
    await first.administration.delete("b")
    await first.close()
    again = Bench(f"sqlite:{tmp_path}", max_agents=3)

    async def never(_agent: str) -> None:
        raise AssertionError("it read an agent")

    monkeypatch.setattr(again.store, "load", never)
    await again.open()
    await again.agents.settle()
    assert again.agents.registry.size == (2, entries * 2 // 3)
    assert [summary.agent for summary in await again.agents.find(SummaryQuery(9))] == ["a", "c"]
    monkeypatch.undo()
    async with reserved_room(again.agents, Quotas(), "a", make_spec().cmdp):
        await again.create("a")
    async with reserved_room(again.agents, Quotas(), "d", make_spec().cmdp):
        await again.create("d")
    with pytest.raises(LimitExceededError, match="3 agents"):
        async with reserved_room(again.agents, Quotas(), "e", make_spec().cmdp):
            pass
    with pytest.raises(NotFoundError):
        await again.agents.record("b")
    await again.close()


async def test_a_kill_leaves_summaries_that_the_next_start_repairs(tmp_path: Path) -> None:
    """They are written after the commit that they describe."""
    first = await Bench(f"sqlite:{tmp_path}").open()
    await first.create("a", "b")
    await first.agents.summaries.flush()
    await first.start("a")
    await first.administration.pause("b", "look")
    await first.create("c")
    await first.store.close()  # without the summaries
    again = await Bench(f"sqlite:{tmp_path}", max_resident_agents=1).open()
    assert again.agents.registry.size.agents == 2
    found = {summary.agent: (summary.version, summary.condition) for summary in await again.agents.find(SummaryQuery(9))}
    assert found == {"a": (2, 1), "b": (2, 2), "c": (1, 1)}
    assert again.agents.registry.size.agents == 3
    await again.close()


async def test_replicas_with_room_for_one_agent_each_are_exact(database: str, new_bench: NewBench) -> None:
    pair = [await new_bench(database, every_events=5, max_resident_agents=1) for _ in range(2)]
    names = ["a", "b", "c"]
    await pair[0].create(*names)

    async def play(name: str) -> None:
        for episode in range(1, 4):
            await pair[episode % 2].start(name)
            for step, state in enumerate((0, 2, 2)):
                for bench in pair:
                    reply = await bench.report(moved(state), name, episode=episode, step=step)
                    assert reply.duplicate == (bench is pair[1])

    await asyncio.gather(*map(play, names))
    for bench in pair:
        await bench.agents.summaries.flush()
        assert bench.agents.registry.members.evictions > 0
    for bench in pair:
        found = {one.agent: one.version for one in await bench.agents.find(SummaryQuery(9))}
        for name in names:
            record = await bench.agents.record(name)
            assert (record.totals.transitions, record.totals.completed_episodes) == (9, 3)
            assert found[name] == record.version
            assert await bench.is_verified(name)
