"""What a message claims is checked before anything is made of it: sizes, shapes, whole agents."""

import ast
import hashlib
import math
import re
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from safe_psrl.problem.presets import preset
from safe_psrl_client import Client, InvalidArgumentError, NotFoundError, RemoteAgent
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, events_pb2, model_pb2
from safe_psrl_server import errors
from safe_psrl_server.agents import definition
from safe_psrl_server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[3]
MOST = 1_000_000  # table entries
LITTLE = 8 * 2**20  # bytes, a tenth of what a table of so many entries would take


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def spec() -> model_pb2.AgentSpec:
    return model_pb2.AgentSpec(
        cmdp=definition.cmdp_to_message(preset("inventory")), max_open_episodes=1, episode_timeout_seconds=60
    )


def learning() -> model_pb2.AgentSpec:
    """An agent that has every kind of table."""
    message = model_pb2.AgentSpec(cmdp=definition.cmdp_to_message(preset("factored-toy")))
    message.cmdp.reward_learned = True
    return message


def _states(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.num_states = 2**62


def _all(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.num_states = cmdp.num_actions = cmdp.horizon = 2**62


def _horizon(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.horizon = 2**40


def _steps(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.non_stationary, cmdp.horizon = True, 100_000


def _shape(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.reward.shape[:] = [2**31, 2**31]


def _overflow(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.reward.shape[:] = [2**32, 2**32]  # 0 in 64 bits
    del cmdp.reward.values[:]


def _negative(cmdp: model_pb2.CmdpSpec) -> None:
    cmdp.num_states = cmdp.num_actions = -(2**31)


def _stretched(cmdp: model_pb2.CmdpSpec) -> None:
    """One long table makes all others as long."""
    steps, pair = 2_000, (cmdp.num_states, cmdp.num_actions)
    cmdp.horizon = steps
    cmdp.reward.CopyFrom(definition.table(np.zeros((steps, *pair))))
    first = cmdp.constraints[0]
    for number in range(90):
        cmdp.constraints.add(name=f"c{number}", cost=first.cost, cost_budget=1.0, satisfiable_cost=0.1)


def _many(cmdp: model_pb2.CmdpSpec) -> None:
    for number in range(100_000):
        cmdp.constraints.add(name=f"c{number}")


@pytest.mark.parametrize("spoil", [_states, _all, _horizon, _steps, _shape, _overflow, _negative, _stretched, _many])
def test_a_specification_that_asks_for_too_much_is_refused_before_it_gets_any(
    spoil: Callable[[model_pb2.CmdpSpec], None],
) -> None:
    message = spec()
    spoil(message.cmdp)
    tracemalloc.start()
    try:
        with pytest.raises(errors.InvalidArgumentError):
            definition.definition_of(message, MOST)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def test_so_the_server_says(client: Client) -> None:
    message = spec()
    _all(message.cmdp)
    with pytest.raises(InvalidArgumentError, match="entries; the server allows"):
        client.create_agent("large", message)
    with pytest.raises(NotFoundError):
        client.get_agent("large")


@pytest.mark.parametrize("shape", [[2**62], [2**32, 2**32], [-1], [-(2**31), -(2**31)], [10**6, 10**6], [3]])
def test_a_packed_array_that_lies_about_its_shape_is_refused(shape: list[int]) -> None:
    lying = events_pb2.PackedArray(shape=shape, dtype="<i8", data=zlib.compress(bytes(16)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="an array"):
            definition.unpack(lying)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def _nan_reward(snapshot: events_pb2.Snapshot) -> None:
    snapshot.spec.cmdp.reward.values[0] = math.nan


def _wild_budget(snapshot: events_pb2.Snapshot) -> None:
    snapshot.spec.cmdp.constraints[0].cost_budget = 1e9


def _large_spec(snapshot: events_pb2.Snapshot) -> None:
    snapshot.spec.cmdp.num_states = 2**40


def _wrong_tables(snapshot: events_pb2.Snapshot) -> None:
    del snapshot.spec.cmdp.reward.values[3:]


def _no_seed(snapshot: events_pb2.Snapshot) -> None:
    snapshot.spec.seed = 2**64 - 1


def _nan_sums(snapshot: events_pb2.Snapshot) -> None:
    _fill(snapshot.signal_sums, math.nan)


def _more_than_seen(snapshot: events_pb2.Snapshot) -> None:
    _fill(snapshot.signal_sums, 1e6)


def _negative_visits(snapshot: events_pb2.Snapshot) -> None:
    _fill(snapshot.visits, -1)


def _negative_counts(snapshot: events_pb2.Snapshot) -> None:
    _fill(snapshot.transition_counts, -1)


def _real_counts(snapshot: events_pb2.Snapshot) -> None:
    snapshot.transition_counts.dtype = "O"


def _turned(snapshot: events_pb2.Snapshot) -> None:
    snapshot.visits.shape[:] = [*reversed(snapshot.visits.shape), 1]


def _large_shape(snapshot: events_pb2.Snapshot) -> None:
    snapshot.transition_counts.shape[:] = [2**62, 2**62]


def _no_room_for_a_transition(snapshot: events_pb2.Snapshot) -> None:
    snapshot.totals.transitions = 2**63 - 1


def _no_room_for_an_episode(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episode = 2**63 - 1


def _endless_counts(snapshot: events_pb2.Snapshot) -> None:
    _fill(snapshot.transition_counts, 2**63 - 1)


def _nan_totals(snapshot: events_pb2.Snapshot) -> None:
    snapshot.totals.reward = math.nan


def _endless_totals(snapshot: events_pb2.Snapshot) -> None:
    snapshot.totals.constraint_regret[0] = math.inf


def _nan_plan(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].started.predicted_costs[0] = math.nan


def _wild_policy(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].started.policy.actions[0] = 10**6


def _long_policy(snapshot: events_pb2.Snapshot) -> None:
    snapshot.episodes[0].started.policy.horizon = 2**31 - 1


SPOILED = [
    *(_nan_reward, _wild_budget, _large_spec, _wrong_tables, _no_seed, _nan_sums, _more_than_seen, _negative_visits),
    *(_negative_counts, _real_counts, _turned, _large_shape, _nan_totals, _endless_totals, _nan_plan, _wild_policy),
    *(_long_policy, _no_room_for_a_transition, _no_room_for_an_episode, _endless_counts),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_an_import_is_checked_like_any_specification(
    client: Client, server: EmbeddedServer, spoil: Callable[[events_pb2.Snapshot], None]
) -> None:
    """Whoever sends an export has made its digest too. Nothing is created, and the original is as it was."""
    client.create_agent("original", learning())
    with RemoteAgent(client, "original", abandon_open=True) as agent:
        agent.begin(0)
    before = client.get_agent("original").status.state_digest
    with grpc.insecure_channel(server.target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        parts = stub.ExportAgent(admin_pb2.ExportAgentRequest(agent="original"), timeout=20)
        snapshot = events_pb2.Snapshot.FromString(b"".join(part.chunk for part in parts))
        spoil(snapshot)
        data = snapshot.SerializeToString()
        message = admin_pb2.ImportAgentRequest(agent="spoiled", chunk=data, digest=hashlib.sha256(data).digest())
        with pytest.raises(grpc.RpcError) as caught:
            stub.ImportAgent(iter([message]), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [status.agent for status in client.list_agents()] == ["original"]
    assert client.get_agent("original").status.state_digest == before


def _fill(packed: events_pb2.PackedArray, value: float) -> None:
    packed.data = zlib.compress(np.full(tuple(packed.shape), value, packed.dtype).tobytes())


SOURCES = sorted(path for place in ("server", "client") for path in (ROOT / place).rglob("*.py"))
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "load_module"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_that_was_received_can_become_code(path: Path) -> None:
    """No pickle, no eval, no shell."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {name.partition(".")[0] for name in names} & FORBIDDEN_MODULES, f"line {node.lineno}"
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            receiver = getattr(getattr(node.func, "value", None), "id", "")
            assert called not in FORBIDDEN_CALLS or receiver == "re", f"line {node.lineno}"
            assert not [k for k in node.keywords if k.arg in {"shell", "allow_pickle"}], f"line {node.lineno}"


def test_no_name_that_a_client_chose_becomes_a_file_name() -> None:
    """Those who answer calls do not open files; agents are keys in the store, never paths."""
    server = ROOT / "server/safe_psrl_server"
    for path in (*(server / "rpc").glob("*.py"), *(server / "agents").glob("*.py")):
        text = re.sub(r"async def open\(|self\.registry\.open\(", "", path.read_text(encoding="utf-8"))  # of agents, not files
        assert not re.search(r"\b(open\(|Path\(|import os\b|from pathlib|import shutil|import tempfile)", text), path


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b\0", "..", "C:\\a", "a\nb", "a" * 129, ""])
def test_a_name_that_looks_like_a_way_out_is_no_name(client: Client, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be 1 to 128 letters"):
        client.create_agent(name, "factored-toy")


def test_a_refusal_that_repeats_a_long_name_arrives_all_the_same(client: Client) -> None:
    """Clients take a few kilobytes of details; more would hide the refusal behind RESOURCE_EXHAUSTED."""
    for letter in ("x", "\U0001f600"):
        with pytest.raises(NotFoundError, match=f"there is no agent '{letter * 4}"):
            client.get_agent(letter * 50_000)
