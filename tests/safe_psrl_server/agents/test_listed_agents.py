"""Agents whose problem lists its next states: through the service, its store and its snapshots as any other."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SimulatedRun
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.definition import definition_of
from safe_psrl_server.agents.messages import cmdp_to_message, pack, unpack
from safe_psrl_server.agents.snapshot import check_record, restored, snapshot_of
from safe_psrl_server.errors import InvalidArgumentError
from safe_psrl_server.store.sqlite.store import SqliteStore
from safe_psrl_testbed import TabularEnvironment
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.specs import make_problem, make_spec, transition
from tests.safe_psrl_server.wire import refusal

SEED = 3


def ring(num_states: int, horizon: int, *, per_step: bool = False) -> tuple[CmdpSpec, np.ndarray]:
    """Each of three actions leads back, nowhere or on; and the kernel [S, A, W] of it."""
    rng, states = np.random.default_rng(1), np.arange(num_states)
    listed = np.sort((states[:, None] + [-1, 0, 1]) % num_states, axis=-1)
    spec = CmdpSpec(
        num_states=num_states,
        num_actions=3,
        horizon=horizon,
        reward=rng.random((num_states, 3)),
        constraints=[Constraint("cost", rng.random((num_states, 3)) * [0.0, 1.0, 1.0], 0.3 * horizon, 0.0)],
        next_states=np.tile(listed[:, None], (1, 3, 1)),
        stationary=not per_step,
    )
    return spec, rng.dirichlet(np.ones(3), (num_states, 3))


@pytest.mark.parametrize("per_step", [False, True])
async def test_learning_equals_the_library_through_crashes(tmp_path: Path, per_step: bool) -> None:
    """After every fifth episode the files as they lie on the disk are all that the next host has, snapshots among them."""
    spec, kernel = ring(40, 4, per_step=per_step)
    environment = TabularEnvironment(spec, kernel, seed=SEED)
    run = SimulatedRun(SafePsrl(spec, seed=SEED), kernel, environment_seed=SEED)
    message = model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), seed=SEED, options=model_pb2.SafePsrlOptions(method="published"))
    for part, every in enumerate((7, 1000, 12, 1000)):
        bench = await Bench(SqliteStore(tmp_path / str(part)), every_events=every).open()
        if part == 0:
            await bench.administration.create("a", message)
        for _ in range(5):
            await play(bench, environment)
        run.advance(5)
        state = bench.record("a").state
        assert np.array_equal(state.transition_counts, run.state.transition_counts)
        assert np.array_equal(state.dual_variables, run.state.dual_variables)
        await bench.agents.runtime.finish()  # a copy is the image of a crash only while nothing is written
        shutil.copytree(tmp_path / str(part), tmp_path / str(part + 1))
        await bench.store.close()
    assert run.state.transition_counts.shape == (4 if per_step else 1, 40, 3, 3)


async def play(bench: Any, environment: TabularEnvironment) -> None:
    """One episode, step by step."""
    state = environment.reset()
    started = await bench.start(state=state)
    policy = bench.record("a").episodes[started.episode].policy
    for step in range(environment.spec.horizon):
        action = int(policy[step, state])
        outcome = environment.step(action)
        moved = control_pb2.Transition(state=state, action=action, next_state=outcome.next_state)
        request = control_pb2.ReportTransitionRequest(agent="a", episode=started.episode, step=step, transition=moved)
        await bench.commands.report(request, wants_action=False)
        state = outcome.next_state


def test_a_next_state_that_is_not_listed_is_refused(wire: Any) -> None:
    """By its reason; the count and the step stay."""
    agent = wire.create(make_spec(listed=True))
    wire.start(agent, 1)
    for next_state in (1, 3):
        refusal(
            lambda next_state=next_state: wire.step(agent, transition(1, 1, next_state)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "OUTSIDE_SUPPORT",
        )
    assert wire.step(agent, transition(1, 1, 2)).step == 0
    reply = wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=agent))
    counts = unpack(reply.transition_counts)
    assert counts.shape == (1, 4, 3, 3)
    assert np.argwhere(counts).tolist() == [[0, 1, 1, 1]]  # the second that is listed
    assert wire.status(agent).visited_ratio == pytest.approx(1 / 11)


def test_a_definition_survives_its_message() -> None:
    for spec in (make_problem(listed=True), ring(5, 2, per_step=True)[0]):
        again = definition_of(
            model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), max_open_episodes=1, episode_timeout_seconds=1)
        ).spec
        assert np.array_equal(again.next_states, spec.next_states)
        assert np.array_equal(again.dirichlet_prior, spec.dirichlet_prior)
        assert again.stationary == spec.stationary


@pytest.mark.parametrize(
    ("shape", "values", "name"),
    [
        ([4, 3, 1], [4] * 12, "spec.next_states[0][0][0]"),
        ([4, 3, 2], [1, 0] * 12, "spec.next_states[0][0][1]"),
        ([4, 3, 2], [0] * 12, "spec.shape of next_states"),
        ([2**40, 2**40], [0] * 12, "spec.shape of next_states"),
        ([-4, -3, 1], [0] * 12, "spec.shape of next_states"),
        ([], [], "spec.shape of next_states"),
        ([], [0], "spec.shape of next_states"),
        ([4, 3, 1], [-1] * 12, "spec.next_states[0][0]"),
    ],
)
def test_malformed_lists_are_refused(shape: list[int], values: list[int], name: str) -> None:
    """With the field, whatever the shape says; a shape alone makes no table."""
    message = make_spec(listed=True, max_open_episodes=1, episode_timeout_seconds=1)
    message.cmdp.next_states.CopyFrom(model_pb2.IntegerTable(shape=shape, values=values))
    with pytest.raises(InvalidArgumentError) as refused:
        definition_of(message)
    assert name in str(refused.value)


async def test_a_snapshot_is_as_large_as_the_support(bench: Any) -> None:
    """Twice the states: about twice the bytes, not four times; and it gives an equal record."""
    sizes = []
    for num_states in (500, 1000, 2000):
        spec, kernel = ring(num_states, 2)
        await bench.administration.create("a", model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), seed=SEED))
        await play(bench, TabularEnvironment(spec, kernel))
        record = bench.record("a")
        data = snapshot_of(record).SerializeToString()
        sizes.append(len(data))
        assert restored("a", data).digest() == record.digest()
        check_record(restored("a", data))
        await bench.administration.delete("a")
    assert all(more < 2.5 * fewer for fewer, more in pairwise(sizes))


@pytest.mark.parametrize("place", [(0, 1, 1, 2), (0, 0, 0, 3)])
async def test_impossible_counts_are_refused(bench: Any, place: tuple[int, ...]) -> None:
    """Where the list has ended, or beyond its width."""
    await bench.create(listed=True)
    snapshot = snapshot_of(bench.record("a"))
    width = max(3, place[-1] + 1)
    counts = np.zeros((1, 4, 3, width), np.int64)
    counts[place] = 1
    snapshot.transition_counts.CopyFrom(pack(counts))
    with pytest.raises(ValueError, match=r"transition counts are|an array is"):
        check_record(restored("a", snapshot.SerializeToString()))
