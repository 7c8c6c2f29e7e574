"""Large policies are stored beside the history: once, compressed, and as long as somebody may ask for them."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server.agents import events
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.errors import DataLossError, InvalidArgumentError
from safe_psrl_server.store import EventStore, StoreError
from safe_psrl_server.store.backup import copy_agents, copy_directory
from safe_psrl_server.store.postgres.store import PostgresStore
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition
from tests.safe_psrl_server.store.appending import execute

HORIZON = 1_500  # with four states a policy of 6,000 entries
LONG_HORIZON = 25_000  # of 100,000


def step(bench: Bench, episode: int, number: int, action: int, agent: str = "a") -> Any:
    return bench.stepped(transition(0, action, 0), agent, episode=episode, step=number)


async def stored_policies(store: EventStore, agent: str = "a") -> set[int]:
    return set((await store.load(agent)).policies)


async def recovered(bench: Bench) -> Bench:
    """Another host on the same open store, as a new process would read it."""
    again = Bench(bench.store)
    await again.agents.open()
    await again.load()
    return again


async def test_a_large_policy_is_stored_once_and_until_its_episode_is_forgotten(bench: Bench) -> None:
    """The event has its digest; the policy itself is there while the episode is open, and while repeats are answered."""
    await bench.create(horizon=HORIZON)
    for episode, kept in ((1, {1}), (2, {1, 2}), (3, {2, 3}), (4, {3, 4})):
        await bench.started()
        assert await stored_policies(bench.store) == kept
        await bench.end(episode)
    events = (await bench.store.load("a")).events
    assert max(map(len, events)) < 2_000
    started = [event.episode_started for event in map(events_pb2.Event.FromString, events) if event.HasField("episode_started")]
    assert [len(event.policy_digest) for event in started] == [32] * 4
    assert [(event.policy.horizon, event.policy.num_states, len(event.policy.actions)) for event in started] == [
        (HORIZON, 4, 0)
    ] * 4
    await bench.administration.delete("a")
    assert await stored_policies(bench.store) == set()


async def test_a_small_policy_stays_in_its_event(new_bench: NewBench) -> None:
    bench = await new_bench()
    for name, horizon, apart in (("small", events.LARGE // 4, False), ("large", events.LARGE // 4 + 1, True)):
        await bench.create(name, horizon=horizon)
        await bench.started(name)
        assert bool(await stored_policies(bench.store, name)) is apart


def test_an_event_keeps_the_policy_that_is_stored_beside_it() -> None:
    """In memory it is as it was, but for the digest; what is stored has the sizes alone."""
    policy = model_pb2.Policy(horizon=2, num_states=events.LARGE, actions=[3] * 2 * events.LARGE)
    policy.mixture.add(share=1.0, actions=policy.actions)
    large = events_pb2.Event(time_micros=7, episode_started=events_pb2.EpisodeStarted(episode=5, policy=policy))
    small = events_pb2.Event(episode_started=events_pb2.EpisodeStarted(episode=4, policy=model_pb2.Policy(actions=[1])))
    payloads, beside = events.encode([small, large])
    assert large.episode_started.policy == policy
    assert payloads[0] == small.SerializeToString()
    bare = events_pb2.Event.FromString(payloads[1])
    assert bare.episode_started.policy == model_pb2.Policy(horizon=2, num_states=events.LARGE)
    assert list(beside) == [5]
    assert events.read_policy(bare.episode_started, beside[5]) == policy
    bare.episode_started.policy.CopyFrom(policy)
    assert bare == large


async def test_repeated_calls_get_the_same_replies_after_a_restart(new_bench: NewBench, tmp_path: Path) -> None:
    """Of the open episode and of the one before; with a snapshot between and without."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create(horizon=HORIZON)

    async def ask(bench: Bench, episode: int) -> list[object]:
        steps = [await step(bench, episode, number, number % 2) for number in range(3)]
        return [await bench.started(request_id=f"key-{episode}"), *steps]

    for episode in (1, 2):
        first = await bench.started(request_id=f"key-{episode}")
        await ask(bench, episode)
        if episode == 1:
            await bench.end(1)
    for snapshot in (False, True):
        if snapshot:
            await bench.snapshot("a")
        again = await recovered(bench)
        for episode in (1, 2):
            assert await ask(again, episode) == await ask(bench, episode)
        assert await again.started(request_id="key-2") == first
        assert len(first.policy.actions) == 4 * HORIZON
        assert snapshot_of(again.record("a"), with_policies=True) == snapshot_of(bench.record("a"), with_policies=True)


async def test_overridden_actions_are_counted_without_the_policies(bench: Bench) -> None:
    await bench.create(horizon=HORIZON)
    overridden = 0
    for episode in (1, 2, 3, 4):
        proposed = (await bench.started()).action
        for number in range(4):
            executed = number % 2
            overridden += executed != proposed
            proposed = (await step(bench, episode, number, executed)).action
        await bench.end(episode)
    assert 0 < overridden < 16
    again = await recovered(bench)
    assert again.record("a").totals.overridden_actions == overridden
    assert again.record("a").digest() == bench.record("a").digest()


@given(st.lists(st.sampled_from(["start", "abandon", "end", "delete", "snapshot"]), max_size=30), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_what_is_stored_is_what_is_remembered(calls: list[str], most: int) -> None:
    """After any calls: the policies of exactly the episodes that the agent remembers."""

    async def run() -> None:
        bench = await Bench().open()
        await bench.create(max_open_episodes=most)
        for call in calls:
            record = bench.record("a")
            if call == "abandon" or (call == "start" and len(record.open_episodes) < most):
                await bench.started(abandon_open=call == "abandon")
            elif call == "end" and record.open_episodes:
                await bench.end(record.open_episodes[-1].number)
            elif call == "snapshot":
                await bench.snapshot("a")
            elif call == "delete":
                await bench.administration.delete("a")
                assert await stored_policies(bench.store) == set()
                await bench.create(max_open_episodes=most)
            assert await stored_policies(bench.store) == set(bench.record("a").episodes)
            again = await recovered(bench)
            assert snapshot_of(again.record("a"), with_policies=True) == snapshot_of(bench.record("a"), with_policies=True)
        await bench.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "LARGE", 0)
        asyncio.run(run())


async def test_twenty_episodes_take_the_room_of_a_few_policies(new_bench: NewBench, tmp_path: Path) -> None:
    """100,000 entries an episode, 2 million in all: the database grows by less than three times one policy's entries."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create(horizon=LONG_HORIZON)
    sizes = []
    for episode in range(1, 21):
        await bench.started()
        await step(bench, episode, 0, 0)
        await bench.end(episode)
        if episode in {1, 20}:
            execute(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
            sizes.append((tmp_path / DATABASE_FILE).stat().st_size)
    assert sizes[1] - sizes[0] < 300_000
    assert await stored_policies(bench.store) == {19, 20}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE policies SET payload = CAST(x'01' || substr(payload, 2) AS BLOB) WHERE episode = 2", "2 was changed"),
        ("UPDATE policies SET payload = (SELECT payload FROM policies WHERE episode = 1) WHERE episode = 2", "2 was changed"),
        ("UPDATE policies SET payload = 'text' WHERE episode = 1", "1 was changed"),
        ("DELETE FROM policies WHERE episode = 2", "2 is missing"),
    ],
)
@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_damaged_policy_quarantines_its_agent_alone(
    new_bench: NewBench, tmp_path: Path, damage: str, message: str, snapshot: bool
) -> None:
    """At the next start, and when the agent is verified; a copy of the directory is refused."""
    bench = await new_bench(f"sqlite:{tmp_path / 'data'}")
    for name in ("a", "b"):
        await bench.create(name, horizon=HORIZON)
        await bench.started(name)
        await bench.end(1, name)
        await bench.started(name)
    if snapshot:
        await bench.snapshot("a")
    execute(tmp_path / "data", f"{damage} AND agent = 'a'")
    again = await recovered(bench)
    with pytest.raises(DataLossError, match=f"policy of episode {message}"):
        again.record("a")
    assert again.record("b").exists
    with pytest.raises(DataLossError, match=f"policy of episode {message}"):
        await bench.agents.verify("a")
    with pytest.raises(StoreError, match=f"agent a is damaged: .*policy of episode {message}"):
        await asyncio.to_thread(copy_directory, tmp_path / "data", tmp_path / "copy")


async def test_export_and_import_carry_the_policies(bench: Bench) -> None:
    """They are inside the export, and beside the stream again where it is imported."""
    await bench.create(horizon=HORIZON)
    await bench.started(request_id="key")
    await step(bench, 1, 0, 0)
    exported = snapshot_of(bench.record("a"), with_policies=True)
    await bench.administration.import_snapshot("b", exported)
    assert len((await bench.store.load("b")).events[0]) < 5_000
    again = await recovered(bench)
    for name in ("a", "b"):
        assert await stored_policies(bench.store, name) == {1}
        assert await again.started(name, request_id="key") == await bench.started(request_id="key")
        assert (await step(again, 1, 0, 0, name)).duplicate
    assert again.record("b").digest() == bench.record("a").digest()


async def test_an_export_without_its_policies_is_refused(bench: Bench) -> None:
    await bench.create(horizon=HORIZON)
    await bench.started()
    with pytest.raises(InvalidArgumentError, match="episode 1: its policy has the wrong size"):
        await bench.administration.import_snapshot("b", snapshot_of(bench.record("a")))


async def test_a_store_is_copied_with_its_policies(new_bench: NewBench, tmp_path: Path, database: str) -> None:
    """By `store copy` to PostgreSQL and back, and by `store backup`."""
    source = await new_bench(f"sqlite:{tmp_path / 'source'}")
    await source.create(horizon=HORIZON)
    played = await source.started(request_id="key")
    stores: list[EventStore] = [source.store, PostgresStore(database), SqliteStore(tmp_path / "target")]
    for before, after in pairwise(stores):
        await after.open()
        await copy_agents(before, after, ["a"])
    for store in stores[1:]:
        await store.close()
    await asyncio.to_thread(copy_directory, tmp_path / "source", tmp_path / "backup")
    for store in (PostgresStore(database), SqliteStore(tmp_path / "target"), SqliteStore(tmp_path / "backup")):
        bench = await new_bench(store)
        assert await bench.started(request_id="key") == played


async def test_a_replica_gets_a_policy_that_another_one_made(new_bench: NewBench, database: str) -> None:
    """It reads on from where it was: the events, and the policies that came with them."""
    here, there = await new_bench(database), await new_bench(database)
    await here.create(horizon=HORIZON)
    for episode in range(1, 6):
        first, second = (here, there) if episode % 2 else (there, here)
        played = await first.started(request_id=f"key-{episode}")
        assert await second.started(request_id=f"key-{episode}") == played
        assert not (await step(second, episode, 0, 0)).duplicate
        assert (await step(first, episode, 0, 0)).duplicate
        await first.end(episode)
    assert await stored_policies(here.store) == {4, 5}
    assert await there.is_verified()
