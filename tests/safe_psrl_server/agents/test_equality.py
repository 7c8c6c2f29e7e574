"""Learning through the service is learning in the library, to the last bit."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, SafePsrl, SafePsrlOptions, SimulatedRun
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.simulation import empty_ledger, enter
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message, unpack
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import TabularEnvironment, scenario_named
from tests.safe_psrl_server.specs import make_problem
from tests.safe_psrl_server.wire import Wire, serving

SEED, ENVIRONMENT_SEED = 11, 5


class Comparison:
    """A run in the library and its twin over gRPC, one episode after the other."""

    def __init__(self, spec: CmdpSpec, transitions: Any, noisy: bool) -> None:
        self.spec = spec
        options = SafePsrlOptions(pessimism_coefficient=0.1, cap_pessimism=True)
        self.run = SimulatedRun(SafePsrl(spec, options, SEED), transitions, environment_seed=ENVIRONMENT_SEED, noisy=noisy)
        self.environment = TabularEnvironment(spec, transitions, noisy=noisy)
        count = spec.num_constraints
        self.ledger = empty_ledger(spec.num_constraints)
        settings = model_pb2.SafePsrlOptions(method="published", pessimism_coefficient=0.1, cap_pessimism=True)
        self.message = model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), options=settings, seed=SEED)
        self._values = np.empty((1 + count, spec.num_states))

    def episode(self, wire: Any, number: int, play: Callable[..., None]) -> None:
        """Play one on both sides; policy, dual variables and regrets must be equal."""
        state = self.environment.reset(ENVIRONMENT_SEED if number == 1 else None)
        started = wire.start("a", state, with_policy=True)
        play(wire, self.environment, state, started)
        self.run.advance(1)
        policy = np.array(started.policy.actions, np.int32).reshape(self.run.draft.policy.shape)
        assert started.episode == number == self.run.episode
        assert np.array_equal(policy, self.run.draft.policy)
        assert list(started.dual_variables) == self.run.dual_variables.tolist()
        evaluate_policy(self.run.world.p, self.run.world.next_states, self.run.world.signals, policy, self._values)
        enter(self.ledger, self.run.learner.problem, self.run.world, self._values)
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(self.ledger, self.run.ledger, strict=True))

    def finish(self, wire: Any) -> None:
        """Everything that was learned is equal too."""
        state = self.run.state
        counts = wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent="a")).transition_counts
        assert np.array_equal(unpack(counts), state.transition_counts)
        status = wire.status("a")
        assert [constraint.dual_variable for constraint in status.constraints] == state.dual_variables.tolist()
        assert status.overridden_actions == 0
        assert status.transitions == status.episode * self.spec.horizon


def moved(state: int, action: int, outcome: Any) -> control_pb2.Transition:
    return control_pb2.Transition(
        state=state, action=action, next_state=outcome.next_state, reward=outcome.reward, costs=outcome.costs
    )


def play_locally(wire: Any, environment: TabularEnvironment, state: int, started: control_pb2.StartEpisodeResponse) -> None:
    """The policy here, one report at the end."""
    path = []
    for step in range(started.horizon):
        action = started.policy.actions[step * started.policy.num_states + state]
        outcome = environment.step(action)
        path.append(moved(state, action, outcome))
        state = outcome.next_state
    assert wire.report_episode("a", started.episode, *path).episode_done


def play_by_steps(wire: Any, environment: TabularEnvironment, state: int, started: control_pb2.StartEpisodeResponse) -> None:
    """A call a step."""
    action = started.action
    for step in range(started.horizon):
        outcome = environment.step(action)
        reply = wire.step("a", moved(state, action, outcome), episode=started.episode, step=step)
        state, action = outcome.next_state, reply.action
    assert reply.episode_done


@pytest.mark.parametrize(("play", "episodes"), [(play_locally, 300), (play_by_steps, 100)])
def test_many_episodes_of_the_streaming_buffer(play: Callable[..., None], episodes: int) -> None:
    """Same seeds: same policies, dual variables and regrets in every episode, same counts at the end."""
    scenario = scenario_named("streaming-buffer")
    comparison = Comparison(scenario.spec, scenario.transitions_for(0), noisy=False)
    with serving() as wire:
        wire.create(comparison.message, "a")
        for number in range(1, episodes + 1):
            comparison.episode(wire, number, play)
        comparison.finish(wire)
    assert comparison.ledger.objective_regret[0] != 0


def test_restarts_change_nothing(tmp_path: Path) -> None:
    scenario = scenario_named("inventory")
    comparison = Comparison(scenario.spec, scenario.transitions_for(0), noisy=False)
    number = 0
    for part in range(4):
        with ExitStack() as stack:
            settings = {"store": f"sqlite:{tmp_path}", "snapshots": {"every_events": 25 + part}}
            server = stack.enter_context(EmbeddedServer(**settings))
            wire = stack.enter_context(Wire(server.target))
            wire.create(comparison.message, "a")
            for _ in range(40):
                number += 1
                comparison.episode(wire, number, play_locally)
            comparison.finish(wire)


def test_learned_and_noisy_signals() -> None:
    """Rewards and costs drawn as 0 or 1 and learned from what was reported, two constraints, masks."""
    spec = make_problem(learned=True, horizon=5)
    transitions = spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True)
    comparison = Comparison(spec, transitions, noisy=True)
    with serving() as wire:
        wire.create(comparison.message, "a")
        for number in range(1, 101):
            comparison.episode(wire, number, play_by_steps if number % 2 else play_locally)
        comparison.finish(wire)
