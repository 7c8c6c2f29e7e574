"""Several hosts on one database are one service: any of them answers any call as a single host would."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.errors import NotFoundError, ServiceError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.rpc.replies import write_start, write_step
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.postgres import commit
from safe_psrl_server.store.postgres.store import PostgresStore

Operation = Callable[[AgentCommands], Awaitable[object]]
Bench = Any  # of conftest
MakeSpec = Callable[..., model_pb2.AgentSpec]


@pytest.fixture
async def pair(database: str, make_bench: Callable[..., Bench]) -> AsyncIterator[tuple[Bench, Bench]]:
    benches = [await make_bench(PostgresStore(database), every_events=20).open() for _ in range(2)]
    yield benches[0], benches[1]
    for bench in benches:
        await bench.close()


def seen(state: int, action: int, next_state: int) -> control_pb2.Transition:
    return control_pb2.Transition(state=state, action=action, next_state=next_state)


# --- calls as they are answered over the wire


def starting(agent: str, state: int, **fields: Any) -> Operation:
    async def call(commands: AgentCommands) -> object:
        request = control_pb2.StartEpisodeRequest(agent=agent, state=state, **fields)
        reply = control_pb2.StartEpisodeResponse()
        write_start(await commands.start_episode(request), request, reply)
        return reply

    return call


def stepping(agent: str, transition: control_pb2.Transition, **fields: Any) -> Operation:
    async def call(commands: AgentCommands) -> object:
        request = control_pb2.StepRequest(agent=agent, transition=transition, **fields)
        reply = control_pb2.StepResponse()
        write_step(Meter(), await commands.report(request, wants_action=True), reply)
        return reply

    return call


def acting(agent: str, state: int, **fields: Any) -> Operation:
    return lambda commands: commands.get_action(control_pb2.GetActionRequest(agent=agent, state=state, **fields))


def looking(agent: str) -> Operation:
    async def call(commands: AgentCommands) -> object:
        status = record_status(await commands.agents.record(agent), with_digest=True)
        status.plan_seconds = 0.0
        return status

    return call


def creating(agent: str, spec: model_pb2.AgentSpec) -> Operation:
    async def call(commands: AgentCommands) -> object:
        return (await commands.create(agent, spec))[1]

    return call


def pausing(agent: str) -> Operation:
    async def call(commands: AgentCommands) -> object:
        return (await commands.pause(agent, "why")).paused

    return call


def resuming(agent: str) -> Operation:
    async def call(commands: AgentCommands) -> object:
        return (await commands.resume(agent)).paused

    return call


async def outcome(commands: AgentCommands, operation: Operation) -> object:
    """The reply, or how it was refused."""
    try:
        return await operation(commands)
    except ServiceError as error:
        return type(error), error.reason, str(error)


class Schedule:
    """Random calls, sensible and not: each begun where the last one led, repeated, too early, or of an unknown episode."""

    def __init__(self, seed: int, spec: model_pb2.AgentSpec) -> None:
        self._spec = spec
        self._chosen = random.Random(seed)
        self._states = {"a": 0, "b": 0}

    def next(self) -> Operation:
        agent, chosen = self._chosen.choice(["a", "b"]), self._chosen
        kind = chosen.choices(
            [self._step, self._start, self._act, self._create, pausing, resuming, looking, self._delete],
            [40, 14, 14, 6, 4, 8, 12, 2],
        )[0]
        return kind(agent)

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
        return stepping(agent, seen(state, 1, next_state), **named)

    def _act(self, agent: str) -> Operation:
        return acting(agent, self._states[agent])

    def _create(self, agent: str) -> Operation:
        return creating(agent, self._spec)

    def _delete(self, agent: str) -> Operation:
        return lambda commands: commands.delete(agent)


@pytest.mark.parametrize("seed", range(6))
async def test_calls_at_any_replica_are_answered_as_by_one_host(
    pair: tuple[Bench, Bench], make_bench: Callable[..., Bench], make_spec: MakeSpec, seed: int
) -> None:
    """Every reply and every refusal, word for word, whichever replica is asked."""
    spec, single = make_spec(fallback=True), await make_bench(MemoryStore()).open()
    for bench in pair:
        bench.agents.now_micros = bench.commands.agents.now_micros = single.clock
    schedule, chosen, replies = Schedule(seed, spec), random.Random(seed), 0
    for operation in (creating("a", spec), creating("b", spec), *(schedule.next() for _ in range(250))):
        single.clock.pass_seconds(1)
        expected = await outcome(single.commands, operation)
        assert await outcome(chosen.choice(pair).commands, operation) == expected
        replies += not isinstance(expected, tuple) or not isinstance(expected[0], type)
    assert replies > 60
    for name in ("a", "b"):
        expected = await outcome(single.commands, looking(name))
        for bench in pair:
            assert await outcome(bench.commands, looking(name)) == expected
    await single.close()


async def test_calls_that_race_at_two_replicas_are_each_entered_once(pair: tuple[Bench, Bench], make_spec: MakeSpec) -> None:
    """The same step reported to both at the same time: one enters it, the other recognises it."""
    await pair[0].commands.create("a", make_spec())
    for number in range(1, 8):
        starts = await asyncio.gather(*(starting("a", 0, request_id=f"r{number}")(bench.commands) for bench in pair))
        assert starts[0] == starts[1]
        state = 0
        for step in range(3):
            move = seen(state, 1, 2)
            replies: list[Any] = await asyncio.gather(
                *(stepping("a", move, episode=number, step=step)(bench.commands) for bench in pair)
            )
            assert sorted(reply.duplicate for reply in replies) == [False, True]
            assert replies[0].action == replies[1].action
            state = 2
    statuses = [await looking("a")(bench.commands) for bench in pair]
    assert statuses[0] == statuses[1]
    assert (await pair[0].agents.record("a")).totals.transitions == 21


async def test_an_agent_that_was_created_elsewhere_is_found(pair: tuple[Bench, Bench], make_spec: MakeSpec) -> None:
    """And one that was deleted elsewhere is not, whoever held it."""
    here, there = pair
    await here.commands.create("a", make_spec())
    started = await there.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
    assert started.episode == 1
    assert (await here.commands.get_action(control_pb2.GetActionRequest(agent="a", state=0))).episode == 1
    await there.commands.delete("a")
    with pytest.raises(NotFoundError):
        await here.agents.record("a")
    with pytest.raises(NotFoundError):
        await here.commands.pause("a", "")
    await here.commands.create("a", make_spec(horizon=2))
    assert (await there.agents.record("a")).definition.spec.horizon == 2


async def test_calls_of_a_stream_keep_their_order_at_a_replica_that_has_to_look_for_the_agent(
    pair: tuple[Bench, Bench], make_spec: MakeSpec
) -> None:
    """Whole episodes in one batch, of agents that it has never heard of: those that came first are decided first."""
    one, two = pair
    names = [f"agent-{i}" for i in range(20)]
    for name in names:
        await one.commands.create(name, make_spec())
    calls = []
    for name in names:
        calls.append(control_pb2.StepStreamRequest(start_episode=control_pb2.StartEpisodeRequest(agent=name)))
        for step in range(3):
            request = control_pb2.StepRequest(agent=name, episode=1, step=step, transition=seen(0, 1, 0))
            calls.append(control_pb2.StepStreamRequest(step=request))

    async def requests() -> AsyncIterator[control_pb2.StepStreamRequest]:
        yield control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=calls))

    replies = [reply async for reply in ControlService(two.commands, 1).StepStream(requests(), None)]
    outcomes = [reply.error.message or reply.WhichOneof("outcome") for reply in replies[0].batch.replies]
    assert outcomes == ["start_episode", "step", "step", "step"] * 20


async def test_asking_for_names_that_are_none_leaves_nothing_behind(pair: tuple[Bench, Bench]) -> None:
    for i in range(20):
        with pytest.raises(NotFoundError):
            await pair[0].commands.delete(f"nobody-{i}")
    together = await asyncio.gather(*(pair[0].commands.delete("nobody") for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in together} == {NotFoundError}
    assert pair[0].agents.agents() == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 100_000, ""])
async def test_a_name_that_cannot_be_stored_harms_nobody_else(
    pair: tuple[Bench, Bench], make_spec: MakeSpec, name: str
) -> None:
    """Calls share queries; one of them must not fail the others."""
    await pair[0].commands.create("a", make_spec())
    calls = [looking("a")(pair[1].commands), looking(name)(pair[1].commands), looking("a")(pair[1].commands)]
    first, refused, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, NotFoundError)
    assert first == second
    assert not isinstance(first, Exception)


async def test_a_pause_at_one_replica_holds_at_the_other_at_once(pair: tuple[Bench, Bench], make_spec: MakeSpec) -> None:
    """An operator who paused an agent is obeyed everywhere before the reply to the pause has arrived."""
    here, there = pair
    await here.commands.create("a", make_spec(fallback=True))
    await here.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
    request = control_pb2.GetActionRequest(agent="a", state=0, episode=1, step=0)
    assert not (await there.commands.get_action(request)).fallback
    await here.commands.pause("a", "look")
    assert (await there.commands.get_action(request)).fallback


async def test_only_the_tail_is_read_again(
    pair: tuple[Bench, Bench], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind reads what it lacks, not the agent."""
    here, there = pair
    await here.commands.create("a", make_spec())
    await there.agents.record("a")

    async def never(_agent: str) -> None:
        raise AssertionError("it read everything")

    monkeypatch.setattr(there.store, "load", never)
    await here.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
    assert (await there.agents.record("a")).version == 2
    await stepping("a", seen(0, 1, 2))(here.commands)
    await stepping("a", seen(2, 1, 2))(there.commands)
    assert (await there.agents.record("a")).version == 4


async def test_a_replica_that_is_far_behind_begins_at_the_latest_snapshot(
    pair: tuple[Bench, Bench], make_spec: MakeSpec
) -> None:
    """The events that it lacks were dropped."""
    here, there = pair
    await here.commands.create("a", make_spec())
    await there.agents.record("a")
    for _ in range(3):
        for _ in range(2):
            await starting("a", 0, abandon_open=True)(here.commands)
        await here.snapshot("a")
    assert await there.store.load_tail("a", 1) is None
    assert await looking("a")(there.commands) == await looking("a")(here.commands)


async def test_what_others_did_is_seen_after_a_refresh(pair: tuple[Bench, Bench], make_spec: MakeSpec) -> None:
    """For metrics and watching: agents, versions, and the snapshots that others took."""
    here, there = pair
    await here.commands.create("a", make_spec())
    await starting("a", 0)(here.commands)
    await here.snapshot("a")
    assert there.agents.agents() == []
    await there.agents.refresh()
    (agent,) = there.agents.agents()
    assert (agent.record and agent.record.version, agent.snapshot_version) == (2, 2)
    await starting("a", 0, abandon_open=True)(here.commands)
    await here.snapshot("a")
    await there.agents.refresh()
    assert (agent.record and agent.record.version, agent.snapshot_version, agent.unsaved_since_micros) == (4, 4, None)


async def test_an_append_of_unknown_outcome_is_unavailable_and_can_be_repeated(
    pair: tuple[Bench, Bench], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored, but the reply was lost: the repeated call is recognised, and nothing is entered twice."""
    here, _ = pair
    await here.commands.create("a", make_spec())
    await starting("a", 0)(here.commands)
    real = commit.write

    async def lost(*arguments: Any) -> set[str]:
        await real(*arguments)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(commit, "write", lost)
    call = stepping("a", seen(0, 1, 2), episode=1, step=0)
    with pytest.raises(UnavailableError, match="does not respond"):
        await call(here.commands)
    monkeypatch.setattr(commit, "write", real)
    reply: Any = await call(here.commands)
    assert reply.duplicate
    assert (await here.agents.record("a")).totals.transitions == 1
    assert (await here.agents.verify("a")).equal


async def test_a_page_of_the_list_reads_no_more_than_it_shows(pair: tuple[Bench, Bench], make_spec: MakeSpec) -> None:
    """Agents that others created, without those that others deleted."""
    here, there = pair
    for i in range(9):
        await here.commands.create(f"agent-{i}", make_spec())
    await here.commands.delete("agent-3")
    await there.agents.refresh("agent-1", 3)
    assert [agent.name for agent in there.agents.agents()] == ["agent-2", "agent-4", "agent-5", "agent-6", "agent-7"]
    await there.agents.refresh("", 2, lambda name: name in {"agent-0", "agent-8"})
    assert len(there.agents.agents()) == 7


@pytest.mark.parametrize("deleted", [True, False])
async def test_lists_over_the_wire_know_what_others_did(
    database: str, make_spec: MakeSpec, make_wire: Callable[..., Any], deleted: bool
) -> None:
    """Two servers; the one that is asked did none of it."""

    def look() -> list[str]:
        with (
            EmbeddedServer(database) as first,
            EmbeddedServer(database) as second,
            make_wire(first.target) as here,
            make_wire(second.target) as there,
        ):
            for name in ("a", "b", "c"):
                here.create(make_spec(), name)
            if deleted:
                here.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent="b"))
            return [status.agent for status in there.admin.ListAgents(admin_pb2.ListAgentsRequest()).agents]

    assert await asyncio.to_thread(look) == (["a", "c"] if deleted else ["a", "b", "c"])
