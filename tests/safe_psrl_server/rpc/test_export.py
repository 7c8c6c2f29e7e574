"""ExportAgent and ImportAgent over a socket: an agent moves as it is, or not at all."""

import hashlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from safe_psrl_proto.v1 import admin_pb2, events_pb2
from tests.safe_psrl_server.specs import make_spec, set_fields, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal, without_incarnation


def exported(wire: Wire, agent: str) -> tuple[bytes, bytes]:
    replies = list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent=agent)))
    return b"".join(reply.chunk for reply in replies), replies[-1].digest


def imported(wire: Wire, agent: str, data: bytes, digest: bytes, chunk: int = 100) -> admin_pb2.AgentStatus:
    def requests() -> Iterator[admin_pb2.ImportAgentRequest]:
        yield admin_pb2.ImportAgentRequest(agent=agent)
        for start in range(0, len(data), chunk):
            yield admin_pb2.ImportAgentRequest(chunk=data[start : start + chunk])
        yield admin_pb2.ImportAgentRequest(digest=digest)

    return wire.admin.ImportAgent(requests()).status


@pytest.mark.parametrize("kind", [{}, {"learned": True}, {"listed": True}])
def test_an_agent_travels(wire: Wire, kind: dict[str, bool]) -> None:
    """Exported and imported: the same digest, the open episode goes on, and the same actions ever after."""
    agent = wire.create(make_spec(**kind))
    moved = transition(0, 1, 0, reward=0.25, costs=[0.5, 0.5])
    for _ in range(3):
        wire.report_episode(agent, wire.start(agent).episode, *[moved] * 3)
    wire.start(agent)
    wire.step(agent, moved)
    data, digest = exported(wire, agent)
    assert hashlib.sha256(data).digest() == digest
    twin = f"{agent}-twin"
    status = imported(wire, twin, data, digest)
    assert (status.state_digest, status.version) == (wire.status(agent).state_digest, 1)
    assert list(status.open_episodes) == [4]

    def go_on(name: str) -> list[Any]:
        replies: list[Any] = [wire.step(name, moved, episode=4, step=1), wire.step(name, moved, episode=4, step=2)]
        for _ in range(5):
            replies.append(without_incarnation(wire.start(name, 0, with_policy=True)))
            wire.report_episode(name, replies[-1].episode, *[moved] * 3)
        return replies

    assert go_on(agent) == go_on(twin)
    assert wire.status(agent).state_digest == wire.status(twin).state_digest


def test_a_damaged_import_is_refused(wire: Wire) -> None:
    """Changed, cut off, without its digest, or no export at all: nothing is created."""
    agent = wire.create()
    wire.report_episode(agent, wire.start(agent).episode, *[transition()] * 3)
    data, digest = exported(wire, agent)
    changed = bytes([*data[:50], data[50] ^ 1, *data[51:]])
    for bad, told in ((changed, digest), (data[:-1], digest), (data, b""), (data, bytes(32)), (b"", digest)):
        refusal(lambda bad=bad, told=told: imported(wire, "new", bad, told), Code.INVALID_ARGUMENT, field="digest")
    garbage = b"\xff" * 40
    refusal(lambda: imported(wire, "new", garbage, hashlib.sha256(garbage).digest()), field="chunk")
    refusal(lambda: wire.status("new"), Code.NOT_FOUND)
    refusal(lambda: imported(wire, agent, data, digest), reason="AGENT_EXISTS")
    refusal(lambda: imported(wire, "bad name", data, digest), field="agent")


def filled(value: float) -> Callable[[events_pb2.PackedArray], None]:
    """Puts `value` everywhere into an array."""

    def fill(packed: events_pb2.PackedArray) -> None:
        packed.data = zlib.compress(np.full(tuple(packed.shape), value, packed.dtype).tobytes())

    return fill


STARTED = "episodes.0.started"
SPOILED: list[dict[str, Any]] = [
    {"format": 99},
    {"spec": None},
    {"spec.seed": 2**64 - 1},
    {"spec.cmdp.num_states": 2**40},
    {"spec.cmdp.reward.values": [0.0] * 3},
    {"spec.cmdp.reward.values.0": math.nan},
    {"spec.cmdp.constraints.0.cost_budget": 1e9},
    {"transition_counts.data": b"no zlib"},
    {"transition_counts.data": zlib.compress(bytes(100 * 1024 * 1024), 1)},
    {"transition_counts.dtype": "O"},
    {"transition_counts.shape": [1, 2, 3, 8]},
    {"transition_counts.shape": [2**62, 2**62]},
    {"transition_counts": filled(-5)},
    {"transition_counts": filled(2**63 - 1)},
    {"visits": filled(-1)},
    {"visits.shape": [3, 4, 1, 1]},
    {"signal_sums": filled(math.nan)},
    {"signal_sums": filled(1e6)},
    {"totals.last_costs": []},
    {"totals.reward": math.nan},
    {"totals.constraint_regret.0": math.inf},
    {"totals.transitions": 2**63 - 1},
    {"dual_variables": [1.0] * 3},
    {"dual_variables.0": math.nan},
    {"episode": -1, "episodes": None},
    {"episode": 2**63 - 1},
    {f"{STARTED}.episode": 5},
    {f"{STARTED}.dual_scale.0": 0.0},
    {f"{STARTED}.predicted_costs.0": math.nan},
    {f"{STARTED}.policy.actions.0": 10**6},
    {f"{STARTED}.policy.horizon": 2**31 - 1},
    {f"{STARTED}.policy.horizon": 1, f"{STARTED}.policy.actions": [1] * 4},
    {"episodes.0.transitions.next_states.0": 99},
    {"episodes.0.transitions.state": 2},
    {"episodes.0.transitions.first_step": 1},
    {"totals.transitions": 2},
    {"totals.completed_episodes": 2},
    {"pause_reason": "x" * 501},
    {f"{STARTED}.request_id": "x" * 129},
    {f"{STARTED}.planned_by": "x" * 501},
]


@pytest.mark.parametrize("changes", SPOILED, ids=lambda changes: next(iter(changes)))
def test_an_import_that_makes_no_sense_is_refused(wire: Wire, changes: dict[str, Any]) -> None:
    """A digest proves the transport, not the sender: what could not be served is not stored, and the original is as it was."""
    agent = wire.create(make_spec(learned=True))
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0, reward=0.5, costs=[0.5, 0.5]))
    snapshot = events_pb2.Snapshot.FromString(exported(wire, agent)[0])
    set_fields(snapshot, changes)
    data, new = snapshot.SerializeToString(), f"{agent}-new"
    with wire.unchanged(agent):
        refusal(lambda: imported(wire, new, data, hashlib.sha256(data).digest(), 65536), Code.INVALID_ARGUMENT)
    refusal(lambda: wire.status(new), Code.NOT_FOUND)
