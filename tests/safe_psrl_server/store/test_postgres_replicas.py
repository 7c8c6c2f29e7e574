"""Several hosts on one database are one service: any of them answers any call as a single host would."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import attrgetter, itemgetter
from typing import Any

import psycopg
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.status import status_with_digest
from safe_psrl_server.errors import NotFoundError, ServiceError, UnavailableError
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.store import SummaryQuery
from safe_psrl_server.store.postgres import commit
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.rpc.streams import batch, episode_of
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import serving

Pair = tuple[Bench, Bench]
Operation = Callable[[Bench], Awaitable[object]]


@pytest.fixture
async def pair(database: str, new_bench: NewBench) -> Pair:
    return await new_bench(database, every_events=20), await new_bench(database, every_events=20)


def starting(agent: str, state: int, **fields: Any) -> Operation:
    return lambda bench: bench.started(agent, state=state, **fields)


def stepping(agent: str, moved: control_pb2.Transition, **fields: Any) -> Operation:
    return lambda bench: bench.stepped(moved, agent, **fields)


def compared(call: Callable[[Bench], Awaitable[Any]], result: Callable[[Any], object]) -> Operation:
    async def operation(bench: Bench) -> object:
        return result(await call(bench))

    return operation


def looking(agent: str) -> Operation:
    def status(record: AgentRecord) -> admin_pb2.AgentStatus:
        found = status_with_digest(record)
        found.plan_seconds = 0.0
        return found

    return compared(lambda bench: bench.agents.record(agent), status)


def creating(agent: str) -> Operation:
    return compared(lambda bench: bench.administration.create(agent, make_spec(fallback=True)), itemgetter(1))


KINDS: list[tuple[Callable[[str], Operation], int]] = [  # calls that need no state, and how often they are chosen
    (creating, 6),
    (lambda agent: compared(lambda bench: bench.administration.pause(agent, "why"), attrgetter("paused")), 4),
    (lambda agent: compared(lambda bench: bench.administration.resume(agent), attrgetter("paused")), 8),
    (looking, 12),
    (lambda agent: lambda bench: bench.administration.delete(agent), 2),
]


async def outcome(bench: Bench, operation: Operation) -> object:
    """The reply, or how it was refused."""
    try:
        return await operation(bench)
    except ServiceError as error:
        return type(error), error.reason, str(error)


class Schedule:
    """Random calls, sensible and not: each begun where the last one led, repeated, too early, or of an unknown episode."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self._states = {"a": 0, "b": 0}

    def next(self) -> Operation:
        agent, chosen = self._chosen.choice(["a", "b"]), self._chosen
        kinds = [(self._step, 40), (self._start, 14), (self._act, 14), *KINDS]
        (kind,) = chosen.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        return kind(agent)

    def _act(self, agent: str) -> Operation:
        state = self._states[agent]
        return lambda bench: bench.act(state, agent)

    def _start(self, agent: str) -> Operation:
        self._states[agent] = state = self._chosen.choice([0, 1])
        key = self._chosen.choice(["", f"key-{self._chosen.randrange(5)}"])
        return starting(agent, state, request_id=key, abandon_open=self._chosen.random() < 0.3)

    def _step(self, agent: str) -> Operation:
        state, chosen = self._states[agent], self._chosen
        next_state = chosen.choice([0, 2])
        named = {"step": chosen.randrange(3)} if chosen.random() < 0.3 else {}
        if chosen.random() < 0.9:
            self._states[agent] = next_state
        return stepping(agent, transition(state, 1, next_state), **named)


@pytest.mark.parametrize("seed", range(6))
async def test_calls_at_any_replica_are_answered_as_by_one_host(new_bench: NewBench, pair: Pair, seed: int) -> None:
    """Every reply and every refusal, word for word, whichever replica is asked."""
    single = await new_bench()
    for bench in pair:
        bench.agents.now_micros = bench.commands.agents.now_micros = single.clock
    schedule, chosen, replies = Schedule(seed), random.Random(seed), 0
    for operation in (creating("a"), creating("b"), *(schedule.next() for _ in range(250))):
        single.clock.pass_seconds(1)
        expected = await outcome(single, operation)
        assert await outcome(chosen.choice(pair), operation) == expected
        replies += not isinstance(expected, tuple) or not isinstance(expected[0], type)
    assert replies > 60
    for name in ("a", "b"):
        expected = await outcome(single, looking(name))
        for bench in pair:
            assert await outcome(bench, looking(name)) == expected


async def test_calls_that_race_at_two_replicas_are_each_entered_once(pair: Pair) -> None:
    """The same step reported to both at the same time: one enters it, the other recognises it."""
    await pair[0].create()
    for number in range(1, 8):
        starts = await asyncio.gather(*(starting("a", 0, request_id=f"r{number}")(bench) for bench in pair))
        assert starts[0] == starts[1]
        state = 0
        for step in range(3):
            move = transition(state, 1, 2)
            replies: list[Any] = await asyncio.gather(
                *(stepping("a", move, episode=number, step=step)(bench) for bench in pair)
            )
            assert sorted(reply.duplicate for reply in replies) == [False, True]
            assert replies[0].action == replies[1].action
            state = 2
    statuses = [await looking("a")(bench) for bench in pair]
    assert statuses[0] == statuses[1]
    assert (await pair[0].agents.record("a")).totals.transitions == 21


async def test_an_agent_that_was_created_elsewhere_is_found(pair: Pair) -> None:
    """And one that was deleted elsewhere is not, whoever held it."""
    here, there = pair
    await here.create()
    started = await there.start()
    assert started.episode == 1
    assert (await here.act()).episode == 1
    await there.administration.delete("a")
    for call in (here.agents.record("a"), here.administration.pause("a", "")):
        with pytest.raises(NotFoundError):
            await call
    await here.create(horizon=2)
    assert (await there.agents.record("a")).definition.spec.horizon == 2


async def test_calls_of_a_stream_keep_their_order_at_a_replica_that_has_to_look_for_the_agent(
    pair: Pair,
) -> None:
    """Whole episodes in one batch, of agents that it has never heard of: those that came first are decided first."""
    one, two = pair
    names = [f"agent-{i}" for i in range(20)]
    await one.create(*names)
    calls = [call for name in names for call in episode_of(name, 1)]

    async def requests() -> AsyncIterator[control_pb2.StepStreamRequest]:
        yield batch(*calls)

    replies = [reply async for reply in ControlService(two.commands, 1).StepStream(requests(), None)]
    outcomes = [reply.error.message or reply.WhichOneof("outcome") for reply in replies[0].batch.replies]
    assert outcomes == ["start_episode", "step", "step", "step"] * 20


async def test_asking_for_names_that_are_none_leaves_nothing_behind(pair: Pair) -> None:
    for i in range(20):
        with pytest.raises(NotFoundError):
            await pair[0].administration.delete(f"nobody-{i}")
    together = await asyncio.gather(*(pair[0].administration.delete("nobody") for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in together} == {NotFoundError}
    assert pair[0].agents.agents() == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 100_000, ""])
async def test_a_name_that_cannot_be_stored_harms_nobody_else(pair: Pair, name: str) -> None:
    """Calls share queries; one of them must not fail the others."""
    await pair[0].create()
    calls = [looking("a")(pair[1]), looking(name)(pair[1]), looking("a")(pair[1])]
    first, refused, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, NotFoundError)
    assert first == second
    assert not isinstance(first, Exception)


async def test_a_pause_at_one_replica_holds_at_the_other_at_once(pair: Pair) -> None:
    """An operator who paused an agent is obeyed everywhere before the reply to the pause has arrived."""
    here, there = pair
    await here.begin(fallback=True)
    assert not (await there.act(episode=1, step=0)).fallback
    await here.administration.pause("a", "look")
    assert (await there.act(episode=1, step=0)).fallback


async def test_only_the_tail_is_read_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is behind reads what it lacks, not the agent."""
    here, there = pair
    await here.create()
    await there.agents.record("a")

    async def never(_agent: str) -> None:
        raise AssertionError("it read everything")

    monkeypatch.setattr(there.store, "load", never)
    await here.start()
    assert (await there.agents.record("a")).version == 2
    await stepping("a", transition(0, 1, 2))(here)
    await stepping("a", transition(2, 1, 2))(there)
    assert (await there.agents.record("a")).version == 4


async def test_a_replica_that_is_far_behind_begins_at_the_latest_snapshot(pair: Pair) -> None:
    here, there = pair
    await here.create()
    await there.agents.record("a")
    for _ in range(3):
        for _ in range(2):
            await starting("a", 0, abandon_open=True)(here)
        await here.snapshot("a")
    assert await there.store.load_tail("a", 1) is None
    assert await looking("a")(there) == await looking("a")(here)


async def test_what_others_did_is_seen_after_a_refresh(pair: Pair) -> None:
    """For metrics and watching: agents, versions, and the snapshots that others took."""
    here, there = pair
    await here.create()
    await starting("a", 0)(here)
    await here.snapshot("a")
    assert there.agents.agents() == []
    await there.agents.record("a")
    await there.agents.refresh()
    (agent,) = there.agents.agents()
    assert (agent.record and agent.record.version, agent.snapshot_version) == (2, 2)
    await starting("a", 0, abandon_open=True)(here)
    await here.snapshot("a")
    await there.agents.refresh()
    assert (agent.record and agent.record.version, agent.snapshot_version, agent.unsaved_since_micros) == (4, 4, None)


async def test_an_append_of_unknown_outcome_is_unavailable_and_can_be_repeated(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored, but the reply was lost: the repeated call is recognised, and nothing is entered twice."""
    here, _ = pair
    await here.create()
    await starting("a", 0)(here)
    real = commit.write

    async def lost(*arguments: Any) -> set[str]:
        await real(*arguments)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(commit, "write", lost)
    call = stepping("a", transition(0, 1, 2), episode=1, step=0)
    with pytest.raises(UnavailableError, match="does not respond"):
        await call(here)
    monkeypatch.setattr(commit, "write", real)
    reply: Any = await call(here)
    assert reply.duplicate
    assert (await here.agents.record("a")).totals.transitions == 1
    assert await here.is_verified()


async def test_a_page_of_the_list_reads_no_more_than_it_shows(pair: Pair) -> None:
    """Agents that others created, without those that others deleted."""
    here, there = pair
    await here.create(*(f"agent-{i}" for i in range(9)))
    await here.administration.delete("agent-3")
    page = await there.agents.find(SummaryQuery(3, after=("agent-1", "agent-1")))
    assert [summary.agent for summary in page] == ["agent-2", "agent-4", "agent-5"]
    assert there.agents.agents() == [], "no agent was loaded"


@pytest.mark.parametrize("deleted", [True, False])
async def test_lists_over_the_wire_know_what_others_did(database: str, deleted: bool) -> None:
    """Two servers; the one that is asked did none of it."""

    def look() -> list[str]:
        with serving(store=database) as here, serving(store=database) as there:
            for name in ("a", "b", "c"):
                here.create(name=name)
            if deleted:
                here.delete("b")
            return [status.agent for status in there.list().agents]

    assert await asyncio.to_thread(look) == (["a", "c"] if deleted else ["a", "b", "c"])


async def test_an_agent_that_another_replica_created_again_is_not_mistaken_for_the_old_one(pair: Pair) -> None:
    """Not even at the same version."""
    here, there = pair
    await here.create(seed=1)
    await here.start()
    old = await there.agents.record("a")
    await here.administration.delete("a")
    here.clock.pass_seconds(1.0)
    await here.create(seed=2)
    await here.start()
    new = await there.agents.record("a")
    assert new.version == old.version == 2
    assert new.created_micros != old.created_micros
    assert new.definition.message.seed == 2
