"""What a message claims is checked before anything is made of it: sizes, shapes, whole agents."""

import ast
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.safe_psrl_server.specs import set_fields
from tests.safe_psrl_server.wire import Code, Wire, refusal

from safe_psrl.problem.presets import preset
from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server import errors
from safe_psrl_server.agents import definition, messages
from safe_psrl_server.config import Limits

ROOT = Path(__file__).parents[3]
MOST = 1_000_000  # table entries
LITTLE = 8 * 2**20  # bytes, a tenth of what a table of so many entries would take


def spec() -> model_pb2.AgentSpec:
    return model_pb2.AgentSpec(
        cmdp=messages.cmdp_to_message(preset("inventory")), max_open_episodes=1, episode_timeout_seconds=60
    )


def stretched(cmdp: model_pb2.CmdpSpec) -> None:
    """One long table makes all others as long."""
    steps, pair = 2_000, (cmdp.num_states, cmdp.num_actions)
    cmdp.horizon = steps
    cmdp.reward.CopyFrom(messages.table(np.zeros((steps, *pair))))
    first = cmdp.constraints[0]
    for number in range(90):
        cmdp.constraints.add(name=f"c{number}", cost=first.cost, cost_budget=1.0, satisfiable_cost=0.1)


def crowded(cmdp: model_pb2.CmdpSpec) -> None:
    for number in range(100_000):
        cmdp.constraints.add(name=f"c{number}")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_states": 2**62},
        {"num_states": 2**62, "num_actions": 2**62, "horizon": 2**62},
        {"num_states": -(2**31), "num_actions": -(2**31)},
        {"horizon": 2**40},
        {"horizon": 100_000, "non_stationary": True},
        {"reward.shape": [2**31, 2**31]},
        {"reward.shape": [2**32, 2**32], "reward.values": []},  # 0 in 64 bits
        {"cmdp": stretched},
        {"cmdp": crowded},
    ],
    ids=lambda changes: "-".join(getattr(value, "__name__", f"{name}={value}") for name, value in changes.items()),
)
def test_a_specification_that_asks_for_too_much_is_refused_before_it_gets_any(changes: dict[str, Any]) -> None:
    message = spec()
    set_fields(message if "cmdp" in changes else message.cmdp, changes)
    tracemalloc.start()
    try:
        with pytest.raises(errors.InvalidArgumentError):
            definition.definition_of(message, Limits(max_table_entries=MOST))
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [[2**62], [2**32, 2**32], [-1], [-(2**31), -(2**31)], [10**6, 10**6], [3]])
def test_a_packed_array_that_lies_about_its_shape_is_refused(shape: list[int]) -> None:
    lying = events_pb2.PackedArray(shape=shape, dtype="<i8", data=zlib.compress(bytes(16)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="an array"):
            messages.unpack(lying)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


SOURCES = sorted(path for place in ("server", "client") for path in (ROOT / place).rglob("*.py"))
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "load_module"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_that_was_received_can_become_code(path: Path) -> None:
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


def test_a_refusal_that_repeats_a_long_name_arrives_all_the_same(wire: Wire) -> None:
    """Clients take a few kilobytes of details; more would hide the refusal behind RESOURCE_EXHAUSTED."""
    for letter in ("x", "\U0001f600"):
        refused = refusal(lambda letter=letter: wire.status(letter * 50_000), Code.NOT_FOUND)
        assert f"there is no agent '{letter * 4}" in refused.message
