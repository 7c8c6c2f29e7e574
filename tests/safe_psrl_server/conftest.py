"""A small problem with every kind of limit, a server on a free port, and a host without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from safe_psrl import CmdpSpec, Constraint, warm_up
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, events_pb2, model_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.agents.definition import cmdp_to_message, completed
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.store import EventStore
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.system.postgres_process import PostgresProcess

HORIZON = 3
names = count()


def problem(*, learned: bool = False, horizon: int = HORIZON, listed: bool = False) -> CmdpSpec:
    """Four states, three actions, two constraints. Episodes begin in 0 or 1; action 2 is not available in state 0; action 1
    leads from state 1 to 0 or 2 only, and where next states are `listed`, no pair leads to state 3."""
    available = np.ones((4, 3), np.bool_)
    available[0, 2] = False
    support = np.ones((4, 3, 4), np.bool_)
    support[1, 1, [1, 3]] = False
    next_states = np.tile([0, 1, 2], (4, 3, 1))
    next_states[1, 1] = [0, 2, -1]
    return CmdpSpec(
        num_states=4,
        num_actions=3,
        horizon=horizon,
        initial_distribution=[0.5, 0.5, 0.0, 0.0],
        reward=np.linspace(0, 1, 12).reshape(4, 3),
        reward_learned=learned,
        constraints=[
            Constraint("energy", np.tile([0.0, 0.5, 1.0], (4, 1)), 0.5 * horizon, 0.1, learned=learned),
            Constraint("wear", np.tile([0.25, 0.0, 0.75], (4, 1)), 0.8 * horizon, 0.3 * horizon, learned=learned),
        ],
        available_actions=available,
        support=None if listed else support,
        next_states=next_states if listed else None,
    )


def agent_spec(
    *, learned: bool = False, horizon: int = HORIZON, listed: bool = False, fallback: bool = False, **fields: Any
) -> model_pb2.AgentSpec:
    """An agent for `problem`; `fallback` plays action 1 everywhere."""
    cmdp = cmdp_to_message(problem(learned=learned, horizon=horizon, listed=listed))
    spec = model_pb2.AgentSpec(cmdp=cmdp, **fields)
    if fallback:
        policy = model_pb2.Policy(horizon=horizon, num_states=4, actions=[1] * (4 * horizon))
        spec.fallback_policy.CopyFrom(policy)
    return spec


def seen(state: int, action: int, next_state: int, **fields: Any) -> control_pb2.Transition:
    return control_pb2.Transition(state=state, action=action, next_state=next_state, **fields)


def begun_record(**fields: Any) -> AgentRecord:
    """Of an agent in its first episode, from events alone."""
    record = AgentRecord("a")
    spec = completed(agent_spec(**fields), 60.0)
    record.apply(events_pb2.Event(agent_created=events_pb2.AgentCreated(spec=spec)))
    _, plan = record.definition.learner.start_episode(record.state)
    record.apply(decisions.starting(plan, "", None, "test", 0.0, 1))
    return record


class Refusal(NamedTuple):
    """A call that was answered with a status."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    fields: list[str]


def refusal_of(call: Callable[[], object]) -> Refusal:
    """How `call` is refused, with its details decoded as any client in Python would."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)
    assert status is not None, f"no details: {caught.value}"
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert info.domain == "safe_psrl"
    fields = [violation.field for detail in status.details if detail.Unpack(bad) for violation in bad.field_violations]
    return Refusal(caught.value.code(), status.message, info.reason, dict(info.metadata), fields)


class Wire:
    """A client with nothing but the generated stubs."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.channel.close()

    def create(self, spec: model_pb2.AgentSpec | None = None, name: str | None = None) -> str:
        """A new agent's name."""
        name = name or f"agent-{next(names)}"
        self.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=name, spec=spec or agent_spec()))
        return name

    def status(self, name: str) -> admin_pb2.AgentStatus:
        return self.admin.GetAgent(admin_pb2.GetAgentRequest(agent=name)).status

    def start(self, name: str, state: int | None = 0, **fields: Any) -> control_pb2.StartEpisodeResponse:
        return self.control.StartEpisode(control_pb2.StartEpisodeRequest(agent=name, state=state, **fields))

    def act(self, name: str, state: int, **fields: Any) -> control_pb2.GetActionResponse:
        return self.control.GetAction(control_pb2.GetActionRequest(agent=name, state=state, **fields))

    def report(self, name: str, transition: control_pb2.Transition, **fields: Any) -> control_pb2.ReportTransitionResponse:
        request = control_pb2.ReportTransitionRequest(agent=name, transition=transition, **fields)
        return self.control.ReportTransition(request)

    def step(self, name: str, transition: control_pb2.Transition, **fields: Any) -> control_pb2.StepResponse:
        return self.control.Step(control_pb2.StepRequest(agent=name, transition=transition, **fields))

    def end(self, name: str, episode: int, end: int = 0) -> control_pb2.EndEpisodeResponse:
        return self.control.EndEpisode(control_pb2.EndEpisodeRequest(agent=name, episode=episode, end=end))

    def report_episode(
        self, name: str, episode: int, *transitions: control_pb2.Transition, **fields: Any
    ) -> control_pb2.ReportEpisodeResponse:
        request = control_pb2.ReportEpisodeRequest(agent=name, episode=episode, transitions=transitions, **fields)
        return self.control.ReportEpisode(request)


class Clock:
    """Microseconds that pass when told to."""

    def __init__(self) -> None:
        self.micros = 1_000_000_000

    def __call__(self) -> int:
        return self.micros

    def pass_seconds(self, seconds: float) -> None:
        self.micros += int(seconds * 1e6)


class Bench:
    """Agents on a store, without a network."""

    def __init__(self, store: EventStore, every_events: int = 2000, **limits: Any) -> None:
        self.clock = Clock()
        self.store = store
        self.agents = AgentService(store, Limits(**limits), SnapshotPolicy(every_events=every_events), self.clock)
        self.commands = AgentCommands(self.agents)

    async def open(self) -> Self:
        await self.store.open()
        await self.agents.open()
        return self

    def record(self, name: str) -> AgentRecord:
        """Of an agent that is in memory."""
        agent = self.agents.registry.resident(name)
        assert agent is not None
        return agent.intact

    async def snapshot(self, name: str) -> None:
        agent = self.agents.registry.resident(name)
        assert agent is not None
        await self.agents.compactor.save(agent)

    async def close(self) -> None:
        await self.agents.close()
        await self.store.close()


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Kernels are compiled or loaded before any test's time runs."""
    warm_up()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(drain_seconds=2.0) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server: EmbeddedServer) -> Iterator[Wire]:
    with Wire(server.target) as wire:
        yield wire


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = await Bench(MemoryStore()).open()
    yield bench
    await bench.close()


@pytest.fixture(scope="session")
def make_bench() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def make_wire() -> type[Wire]:
    return Wire


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., model_pb2.AgentSpec]:
    return agent_spec


@pytest.fixture(scope="session")
def make_problem() -> Callable[..., CmdpSpec]:
    return problem


@pytest.fixture(scope="session")
def transition() -> Callable[..., control_pb2.Transition]:
    return seen


@pytest.fixture(scope="session")
def begun() -> Callable[..., AgentRecord]:
    return begun_record


@pytest.fixture(scope="session")
def refusal() -> Callable[[Callable[[], object]], Refusal]:
    return refusal_of


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    """A real database server."""
    with PostgresProcess("fsync=off") as postgres:
        yield postgres


@pytest.fixture
def database(postgres: PostgresProcess) -> str:
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """Each store that keeps the contract, open."""
    if request.param == "memory":
        store: EventStore = MemoryStore()
    elif request.param == "sqlite":
        store = SqliteStore(tmp_path / "data")
    else:
        from safe_psrl_server.store.postgres.store import PostgresStore  # noqa: PLC0415

        store = PostgresStore(request.getfixturevalue("database"))
    await store.open()
    yield store
    await asyncio.shield(store.close())
