"""Large policies are stored beside the history: once, compressed, and as long as somebody may ask for them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import events
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.errors import DataLossError, InvalidArgumentError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.rpc.replies import write_start, write_step
from safe_psrl_server.store import EventStore, StoreError
from safe_psrl_server.store.backup import copy_directory
from safe_psrl_server.store.copy import copy_agents
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.postgres.store import PostgresStore
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from tests.safe_psrl_server.store.appending import execute

HORIZON = 1_500  # with four states a policy of 6,000 entries
LONG_HORIZON = 25_000  # of 100,000
Bench = Any  # of conftest
MakeSpec = Callable[..., model_pb2.AgentSpec]


@pytest.fixture
async def new_bench(make_bench: Callable[..., Bench]) -> AsyncIterator[Callable[..., Any]]:
    """A host on a store, which is opened if it is not."""
    made: list[Bench] = []

    async def make(store: EventStore) -> Bench:
        made.append(await make_bench(store).open())
        return made[-1]

    yield make
    for bench in made:
        await bench.close()


async def start(bench: Bench, agent: str = "a", **fields: Any) -> control_pb2.StartEpisodeResponse:
    request = control_pb2.StartEpisodeRequest(agent=agent, state=0, with_policy=True, **fields)
    reply = control_pb2.StartEpisodeResponse()
    write_start(await bench.commands.start_episode(request), request, reply)
    return reply


async def step(bench: Bench, episode: int, number: int, action: int, agent: str = "a") -> control_pb2.StepResponse:
    moved = control_pb2.Transition(state=0, action=action, next_state=0)
    request = control_pb2.StepRequest(agent=agent, episode=episode, step=number, transition=moved)
    reported = await bench.commands.report(request, wants_action=True)
    reply = control_pb2.StepResponse()
    write_step(Meter(), reported, reply)
    return reply


async def end(bench: Bench, episode: int, agent: str = "a") -> None:
    await bench.commands.end_episode(control_pb2.EndEpisodeRequest(agent=agent, episode=episode))


async def stored_policies(store: EventStore, agent: str = "a") -> set[int]:
    return set((await store.load(agent)).policies)


async def recovered(bench: Bench, make_bench: Callable[..., Bench]) -> Bench:
    """Another host on the same open store, as a new process would read it."""
    again = make_bench(bench.store)
    await again.agents.open()
    await again.agents.refresh()
    return again


async def test_a_large_policy_is_stored_once_and_until_its_episode_is_forgotten(
    new_bench: Callable[..., Any], make_spec: MakeSpec
) -> None:
    """The event has its digest; the policy itself is there while the episode is open, and while repeats are answered."""
    bench = await new_bench(MemoryStore())
    await bench.commands.create("a", make_spec(horizon=HORIZON))
    for episode, kept in ((1, {1}), (2, {1, 2}), (3, {2, 3}), (4, {3, 4})):
        await start(bench)
        assert await stored_policies(bench.store) == kept
        await end(bench, episode)
    events = (await bench.store.load("a")).events
    assert max(map(len, events)) < 2_000
    started = [event.episode_started for event in map(events_pb2.Event.FromString, events) if event.HasField("episode_started")]
    assert [len(event.policy_digest) for event in started] == [32] * 4
    assert [(event.policy.horizon, event.policy.num_states, len(event.policy.actions)) for event in started] == [
        (HORIZON, 4, 0)
    ] * 4
    await bench.commands.delete("a")
    assert await stored_policies(bench.store) == set()


async def test_a_small_policy_stays_in_its_event(new_bench: Callable[..., Any], make_spec: MakeSpec) -> None:
    bench = await new_bench(MemoryStore())
    for name, horizon, apart in (("small", events.LARGE // 4, False), ("large", events.LARGE // 4 + 1, True)):
        await bench.commands.create(name, make_spec(horizon=horizon))
        await start(bench, name)
        assert bool(await stored_policies(bench.store, name)) is apart


def test_an_event_keeps_the_policy_that_is_stored_beside_it() -> None:
    """In memory it is as it was, but for the digest; what is stored has the sizes alone."""
    policy = model_pb2.Policy(horizon=2, num_states=events.LARGE, actions=[3] * 2 * events.LARGE, probabilities=[0.5])
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


async def test_repeated_calls_get_the_same_replies_after_a_restart(
    new_bench: Callable[..., Any], make_bench: Callable[..., Bench], make_spec: MakeSpec, tmp_path: Path
) -> None:
    """Of the open episode and of the one before; with a snapshot between and without."""
    bench = await new_bench(SqliteStore(tmp_path))
    await bench.commands.create("a", make_spec(horizon=HORIZON))

    async def ask(bench: Bench, episode: int) -> list[object]:
        steps = [await step(bench, episode, number, number % 2) for number in range(3)]
        return [await start(bench, request_id=f"key-{episode}"), *steps]

    for episode in (1, 2):
        first = await start(bench, request_id=f"key-{episode}")
        await ask(bench, episode)
        if episode == 1:
            await end(bench, 1)
    for snapshot in (False, True):
        if snapshot:
            await bench.snapshot("a")
        again = await recovered(bench, make_bench)
        for episode in (1, 2):
            assert await ask(again, episode) == await ask(bench, episode)
        assert await start(again, request_id="key-2") == first
        assert len(first.policy.actions) == 4 * HORIZON
        assert snapshot_of(again.record("a"), with_policies=True) == snapshot_of(bench.record("a"), with_policies=True)


async def test_overridden_actions_are_counted_without_the_policies(
    new_bench: Callable[..., Any], make_bench: Callable[..., Bench], make_spec: MakeSpec
) -> None:
    """Episodes whose policy is gone are folded again to the same sums."""
    bench = await new_bench(MemoryStore())
    await bench.commands.create("a", make_spec(horizon=HORIZON))
    overridden = 0
    for episode in (1, 2, 3, 4):
        proposed = (await start(bench)).action
        for number in range(4):
            executed = number % 2
            overridden += executed != proposed
            proposed = (await step(bench, episode, number, executed)).action
        await end(bench, episode)
    assert 0 < overridden < 16
    again = await recovered(bench, make_bench)
    assert again.record("a").totals.overridden_actions == overridden
    assert again.record("a").digest() == bench.record("a").digest()


@given(st.lists(st.sampled_from(["start", "abandon", "end", "delete", "snapshot"]), max_size=30), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_what_is_stored_is_what_is_remembered(make_bench: Any, make_spec: Any, calls: list[str], most: int) -> None:
    """After any calls: the policies of exactly the episodes that the agent remembers."""

    async def run() -> None:
        bench = await make_bench(MemoryStore()).open()
        spec = make_spec(max_open_episodes=most)
        await bench.commands.create("a", spec)
        for call in calls:
            record = bench.record("a")
            if call == "abandon" or (call == "start" and len(record.open_episodes) < most):
                await start(bench, abandon_open=call == "abandon")
            elif call == "end" and record.open_episodes:
                await end(bench, record.open_episodes[-1].number)
            elif call == "snapshot":
                await bench.snapshot("a")
            elif call == "delete":
                await bench.commands.delete("a")
                assert await stored_policies(bench.store) == set()
                await bench.commands.create("a", spec)
            assert await stored_policies(bench.store) == set(bench.record("a").episodes)
            again = await recovered(bench, make_bench)
            assert snapshot_of(again.record("a"), with_policies=True) == snapshot_of(bench.record("a"), with_policies=True)
        await bench.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "LARGE", 0)
        asyncio.run(run())


async def test_fifty_episodes_take_the_room_of_a_few_policies(
    new_bench: Callable[..., Any], make_spec: MakeSpec, tmp_path: Path
) -> None:
    """100,000 entries an episode, 5 million in all: the database grows by less than three times one policy's entries."""
    bench = await new_bench(SqliteStore(tmp_path))
    await bench.commands.create("a", make_spec(horizon=LONG_HORIZON))
    sizes = []
    for episode in range(1, 51):
        await start(bench)
        await step(bench, episode, 0, 0)
        await end(bench, episode)
        if episode in {1, 50}:
            execute(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
            sizes.append((tmp_path / DATABASE_FILE).stat().st_size)
    assert sizes[1] - sizes[0] < 300_000
    assert await stored_policies(bench.store) == {49, 50}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "UPDATE policies SET payload = CAST(x'01' || substr(payload, 2) AS BLOB) WHERE episode = 2",
            "policy of episode 2 was changed",
        ),
        (
            "UPDATE policies SET payload = (SELECT payload FROM policies WHERE episode = 1) WHERE episode = 2",
            "policy of episode 2 was changed",
        ),
        ("UPDATE policies SET payload = 'text' WHERE episode = 1", "policy of episode 1 was changed"),
        ("DELETE FROM policies WHERE episode = 2", "policy of episode 2 is missing"),
    ],
)
@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_damaged_policy_quarantines_its_agent_alone(
    new_bench: Callable[..., Any],
    make_bench: Callable[..., Bench],
    make_spec: MakeSpec,
    tmp_path: Path,
    damage: str,
    message: str,
    snapshot: bool,
) -> None:
    """At the next start, and when the agent is verified; a copy of the directory is refused."""
    bench = await new_bench(SqliteStore(tmp_path / "data"))
    for name in ("a", "b"):
        await bench.commands.create(name, make_spec(horizon=HORIZON))
        await start(bench, name)
        await end(bench, 1, name)
        await start(bench, name)
    if snapshot:
        await bench.snapshot("a")
    execute(tmp_path / "data", f"{damage} AND agent = 'a'")
    again = await recovered(bench, make_bench)
    with pytest.raises(DataLossError, match=message):
        again.record("a")
    assert again.record("b").exists
    with pytest.raises(DataLossError, match=message):
        await bench.agents.verify("a")
    with pytest.raises(StoreError, match=f"agent a is damaged: .*{message}"):
        await asyncio.to_thread(copy_directory, tmp_path / "data", tmp_path / "copy")


async def test_export_and_import_carry_the_policies(
    new_bench: Callable[..., Any], make_bench: Callable[..., Bench], make_spec: MakeSpec
) -> None:
    """They are inside the export, and beside the stream again where it is imported."""
    bench = await new_bench(MemoryStore())
    await bench.commands.create("a", make_spec(horizon=HORIZON))
    await start(bench, request_id="key")
    await step(bench, 1, 0, 0)
    exported = snapshot_of(bench.record("a"), with_policies=True)
    await bench.commands.import_snapshot("b", exported)
    assert len((await bench.store.load("b")).events[0]) < 5_000
    again = await recovered(bench, make_bench)
    for name in ("a", "b"):
        assert await stored_policies(bench.store, name) == {1}
        assert await start(again, name, request_id="key") == await start(bench, request_id="key")
        assert (await step(again, 1, 0, 0, name)).duplicate
    assert again.record("b").digest() == bench.record("a").digest()


async def test_an_export_without_its_policies_is_refused(new_bench: Callable[..., Any], make_spec: MakeSpec) -> None:
    bench = await new_bench(MemoryStore())
    await bench.commands.create("a", make_spec(horizon=HORIZON))
    await start(bench)
    with pytest.raises(InvalidArgumentError, match="episode 1: its policy has the wrong size"):
        await bench.commands.import_snapshot("b", snapshot_of(bench.record("a")))


async def test_a_store_is_copied_with_its_policies(
    new_bench: Callable[..., Any], make_spec: MakeSpec, tmp_path: Path, database: str
) -> None:
    """By `store copy` to PostgreSQL and back, and by `store backup`."""
    source = await new_bench(SqliteStore(tmp_path / "source"))
    await source.commands.create("a", make_spec(horizon=HORIZON))
    played = await start(source, request_id="key")
    stores: list[EventStore] = [source.store, PostgresStore(database), SqliteStore(tmp_path / "target")]
    for before, after in pairwise(stores):
        await after.open()
        await copy_agents(before, after, ["a"])
    for store in stores[1:]:
        await store.close()
    await asyncio.to_thread(copy_directory, tmp_path / "source", tmp_path / "backup")
    for store in (PostgresStore(database), SqliteStore(tmp_path / "target"), SqliteStore(tmp_path / "backup")):
        bench = await new_bench(store)
        assert await start(bench, request_id="key") == played


async def test_a_replica_gets_a_policy_that_another_one_made(
    new_bench: Callable[..., Any], make_spec: MakeSpec, database: str
) -> None:
    """It reads on from where it was: the events, and the policies that came with them."""
    here, there = await new_bench(PostgresStore(database)), await new_bench(PostgresStore(database))
    await here.commands.create("a", make_spec(horizon=HORIZON))
    for episode in range(1, 6):
        first, second = (here, there) if episode % 2 else (there, here)
        played = await start(first, request_id=f"key-{episode}")
        assert await start(second, request_id=f"key-{episode}") == played
        assert not (await step(second, episode, 0, 0)).duplicate
        assert (await step(first, episode, 0, 0)).duplicate
        await end(first, episode)
    assert await stored_policies(here.store) == {4, 5}
    assert (await there.agents.verify("a")).equal


# --- stores of the schema before


async def play_inline(bench: Bench, spec: model_pb2.AgentSpec) -> control_pb2.StartEpisodeResponse:
    """An episode as it was stored before: its policy in the event, whatever its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "LARGE", 10**9)
        await bench.commands.create("a", spec)
        started = await start(bench, request_id="old")
        await step(bench, 1, 0, 1)
    assert await stored_policies(bench.store) == set()
    return started


async def check_old(bench: Bench, played: control_pb2.StartEpisodeResponse) -> None:
    """It goes on in the old episode, and stores the next one apart."""
    assert await start(bench, request_id="old") == played
    assert (await step(bench, 1, 0, 1)).duplicate
    await end(bench, 1)
    await start(bench)
    assert await stored_policies(bench.store) == {2}
    assert (await bench.agents.verify("a")).equal
