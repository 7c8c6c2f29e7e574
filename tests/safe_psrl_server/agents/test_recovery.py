"""Snapshots, and agents whose stored history cannot be followed."""

import asyncio
from pathlib import Path

import pytest

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.errors import (
    DataLossError,
)
from safe_psrl_server.store import Append, DamagedStreamError, open_store
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition
from tests.safe_psrl_server.store.appending import execute


async def test_a_damaged_agent_is_quarantined_and_the_others_go_on(new_bench: NewBench, tmp_path: Path) -> None:
    """Every call for it is DATA_LOSS, creating it anew included; nothing is put in its place."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create("a", "b")
    await bench.close()
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE agent = 'a'")
    execute(tmp_path, "DELETE FROM snapshots")
    again = await new_bench(f"sqlite:{tmp_path}")
    for call in (
        again.start,
        again.act,
        again.create,
        lambda: again.administration.delete("a"),
        lambda: again.administration.pause("a", ""),
        lambda: again.agents.verify("a"),
    ):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()
    await again.load()
    assert [agent.name for agent in again.agents.agents()] == ["a", "b"]
    reply = await again.start("b")
    assert reply.episode == 1
    await again.close()
    once_more = await new_bench(f"sqlite:{tmp_path}")
    with pytest.raises(DataLossError):
        await once_more.agents.record("a")


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"\xff\xff",
        events_pb2.Event(agent_created=events_pb2.AgentCreated()).SerializeToString(),
        events_pb2.Event(episode_ended=events_pb2.EpisodeEnded(episode=7)).SerializeToString(),
        events_pb2.Event(transitions_observed=events_pb2.TransitionsObserved(episode=7)).SerializeToString(),
    ],
)
async def test_events_that_cannot_be_folded_quarantine_their_agent(bench: Bench, new_bench: NewBench, event: bytes) -> None:
    """Of a later release, or of a fault: intact bytes that this release cannot follow stop that agent, not the server."""
    await bench.create("a", "b")
    await bench.store.commit([Append("a", 1, [event])])
    again = await new_bench(bench.store)
    with pytest.raises(DataLossError, match="cannot be folded"):
        await again.agents.record("a")
    assert (await again.agents.record("b")).exists


async def test_snapshots_are_taken_by_count_and_at_the_end(tmp_path: Path) -> None:
    """Recovery reads at most so many events; after a clean stop it reads none."""
    bench = await Bench(f"sqlite:{tmp_path}", every_events=4).open()
    await bench.create()
    for _ in range(5):
        await bench.start(abandon_open=True)
    await bench.agents.runtime.finish()
    stream = await bench.store.load("a")
    assert stream.snapshot is not None
    assert len(stream.events) < 4
    await bench.start(abandon_open=True)
    state = bench.record("a").digest()
    await bench.close()
    store = open_store(f"sqlite:{tmp_path}")
    await store.open()
    assert (await store.load("a")).events == []
    await store.close()
    again = await Bench(f"sqlite:{tmp_path}").open()
    assert (await again.agents.record("a")).digest() == state
    await again.close()


async def test_long_trajectories_are_not_left_to_be_read(new_bench: NewBench) -> None:
    """Each is one event, but reading it takes as long as several: snapshots come by steps, too, and begin to count anew."""
    few, steps = await new_bench(every_events=10), 20
    await few.create(horizon=steps)
    taken = []
    for number in range(1, 7):
        await few.start()
        path = [transition(0, 1, 0)] * steps
        await few.report_episode(number, *path)
        await few.agents.runtime.finish()
        taken.append(len((await few.store.load("a")).events))
    assert taken == [4, 0, 3, 0, 3, 0]


async def test_a_snapshot_of_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    """The event that it stands for must be there; what is served goes on, and nothing is overwritten."""
    bench = await Bench(f"sqlite:{tmp_path}").open()
    await bench.create()
    execute(tmp_path, "DELETE FROM events")
    await bench.snapshot("a")
    assert execute(tmp_path, "SELECT count(*) FROM snapshots") == [(0,)]
    with pytest.raises(DamagedStreamError):
        await bench.store.load("a")
    await bench.store.close()


async def test_verifying_a_damaged_agent_quarantines_it(new_bench: NewBench, tmp_path: Path) -> None:
    """At once: nothing more is acknowledged that a restart could not read."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.begin()
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE version = 1")
    for call in (lambda: bench.agents.verify("a"), lambda: bench.report(transition(0, 1, 0)), bench.act):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()


async def test_a_busy_agent_still_gets_its_snapshots(new_bench: NewBench) -> None:
    bench = await new_bench(every_events=5)
    await bench.begin(horizon=200)
    calls = [bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(100)]
    await asyncio.gather(*calls)
    assert (await bench.store.heads())["a"].snapshot_version > 50
