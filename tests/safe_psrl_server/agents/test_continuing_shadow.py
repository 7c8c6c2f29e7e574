"""Shadow in continuing tasks: epochs are learned and not charged, realised averages are per step, promotion needs a verdict."""

import math
from typing import Any

import numpy as np
import pytest

from safe_psrl import ContinuingPsrl, SafePsrlOptions, preset, warm_up_continuing
from safe_psrl.comparison import average_reward_doubt, average_values
from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.totals import ShadowTotals
from safe_psrl_testbed import TabularEnvironment
from safe_psrl_testbed.kernels import KERNELS
from tests.safe_psrl_server.agents.test_continuing_agents import SEED, agent_spec, moved
from tests.safe_psrl_server.agents.test_continuing_explanations import learned
from tests.safe_psrl_server.wire import Code, Wire, refusal

SLOW = 1  # the incumbent's only action


@pytest.fixture(scope="module", autouse=True)
def compiled_epochs() -> None:
    warm_up_continuing()


class Incumbent:
    """Plays the continuing buffer slowly, whatever an agent in shadow proposes; executes what a live agent orders."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name
        self.environment = TabularEnvironment(preset("continuing-buffer"), KERNELS["continuing-buffer"]())
        self.state = self.environment.reset(seed=5)
        self.seen: list[tuple[float, float]] = []
        self.epochs: list[list[tuple[float, float]]] = [[]]
        self.reply: Any = wire.start(name, self.state)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            action = SLOW if self.reply.advisory else self.reply.action
            outcome = self.environment.step(action)
            self.reply = self.wire.step(self.name, moved(self.state, action, outcome))
            self.state = outcome.next_state
            self.seen.append((outcome.reward, outcome.costs[0]))
            self.epochs[-1].append(self.seen[-1])
            if self.reply.episode_done:
                self.epochs.append([])


def shadow(wire: Wire, max_epoch_steps: int = 40, **more: Any) -> str:
    return wire.create(agent_spec(preset("continuing-buffer"), max_epoch_steps=max_epoch_steps, mode="shadow", **more))


def compared(wire: Wire, name: str, policy: list[int] | None = None) -> admin_pb2.CompareAgentResponse:
    request = admin_pb2.CompareAgentRequest(agent=name)
    if policy is not None:
        request.policy.CopyFrom(model_pb2.Policy(horizon=1, num_states=len(policy), actions=policy))
    reply: admin_pb2.CompareAgentResponse = wire.admin.CompareAgent(request)
    return reply


def set_mode(wire: Wire, name: str, mode: str, *, force: bool = False) -> None:
    request = admin_pb2.UpdateAgentRequest(agent=name, update=model_pb2.AgentSpec(mode=mode), force=force)
    request.update_mask.paths.append("mode")
    wire.admin.UpdateAgent(request)


@pytest.mark.parametrize("method", ["certified", "published"])
def test_nothing_that_the_incumbent_did_is_charged(wire: Wire, method: str) -> None:
    """Not even epochs that were broken off; dual variables stay; all is learned."""
    name = shadow(wire, guard=model_pb2.Guard(max_constraint_regret=0.01), method=method)
    incumbent = Incumbent(wire, name)
    incumbent.play(120)
    wire.end(name, incumbent.reply.next_episode)
    status = wire.status(name)
    assert (status.transitions, status.completed_episodes, status.cumulative_reward) == (120, 0, 0.0)
    assert (status.overridden_actions, status.mode, status.recent_episodes, status.epoch_steps) == (0, "shadow", 0, 0)
    assert not status.paused_by_guard
    constraint = status.constraints[0]
    assert (constraint.constraint_regret, constraint.strong_violation, constraint.dual_variable) == (0.0, 0.0, 0.0)
    assert status.shadow_episodes == len([epoch for epoch in incumbent.epochs if epoch])
    found = compared(wire, name)
    assert found.shadow_steps == 120
    assert found.incumbent.reward.mean == pytest.approx(np.mean([reward for reward, _ in incumbent.seen]))
    assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name)).ok


def test_realised_averages_have_the_error_of_a_ratio(wire: Wire) -> None:
    """Per step, by epochs: deviations of an epoch's sum from the mean times its steps."""
    name = shadow(wire)
    incumbent = Incumbent(wire, name)
    incumbent.play(300)
    ended = [np.array(epoch) for epoch in incumbent.epochs[:-1]]
    steps, sums = np.array([len(epoch) for epoch in ended]), np.array([epoch.sum(axis=0) for epoch in ended])
    means = sums.sum(axis=0) / steps.sum()
    deviations = sums - means * steps[:, None]
    errors = np.sqrt((deviations**2).sum(axis=0) * len(steps) / (len(steps) - 1)) / steps.sum()
    found = compared(wire, name)
    assert (found.shadow_episodes, found.shadow_steps) == (len(steps), steps.sum())
    shown = found.incumbent.reward, *found.incumbent.costs
    assert [one.mean for one in shown] == pytest.approx(means)
    assert [one.error for one in shown] == pytest.approx(errors)


def test_the_error_covers_the_mean_of_a_long_course() -> None:
    """Of epochs that are independent, two errors cover the truth in about 95 % of the cases."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        totals = ShadowTotals.blank(1)
        for steps in rng.integers(5, 60, 40):
            seen = rng.random(steps) < 0.3
            totals.complete(float(seen.sum()), [0.0], int(steps))
        reward = totals.means[0]
        covered += abs(reward.mean - 0.3) <= 2 * reward.error
    assert 180 <= covered <= 199


def test_the_plan_is_compared_by_averages_under_the_posterior(wire: Wire) -> None:
    name = shadow(wire)
    incumbent = Incumbent(wire, name)
    incumbent.play(200)
    spec = preset("continuing-buffer")
    found, learner = compared(wire, name, [SLOW] * spec.num_states), ContinuingPsrl(spec, SafePsrlOptions("certified"), SEED)
    state = learned(wire, name, learner)
    plan = learner.plan(state, 200, incumbent.state)
    given = np.eye(spec.num_actions)[[SLOW] * spec.num_states]
    for shown, policy in ((found.plan, plan.probabilities), (found.policy, given)):
        expected = average_values(learner.base, state, policy, incumbent.state)
        pairs = [(one.mean, one.error) for one in (shown.reward, *shown.costs)]
        assert pairs == [pytest.approx(pair) for pair in zip(expected.means, expected.sigmas, strict=True)]
    assert plan.certified_costs is not None
    assert list(found.certified_costs) == pytest.approx(plan.certified_costs)
    assert found.gain.mean == pytest.approx(found.plan.reward.mean - found.incumbent.reward.mean)
    doubt = average_reward_doubt(learner.base, state, plan.probabilities, incumbent.state)
    assert doubt > 0.05  # the incumbent has never played some of the pairs
    known = math.hypot(found.plan.reward.error, found.incumbent.reward.error)
    assert found.gain.error == pytest.approx(known + doubt / found.deviations)
    refusal(lambda: compared(wire, name, [0]), Code.INVALID_ARGUMENT, field="policy")


def choice() -> model_pb2.AgentSpec:
    """One state. Action 0 earns nothing; action 1 earns 1, and costs 0.1 of a budget of 0.5."""
    limit = model_pb2.Constraint(name="c", cost=row(0.0, 0.1), cost_budget=0.5, satisfiable_cost=0.0)
    cmdp = model_pb2.CmdpSpec(num_states=1, num_actions=2, continuing=True, reward=row(0.0, 1.0), constraints=[limit])
    return model_pb2.AgentSpec(cmdp=cmdp, mode="shadow", max_epoch_steps=60)


def row(*values: float) -> model_pb2.Table:
    return model_pb2.Table(shape=[1, 2], values=values)


def beside(wire: Wire, name: str, steps: int) -> None:
    for _ in range(steps):
        wire.step(name, control_pb2.Transition(state=0, action=0, next_state=0))


def test_promotion_needs_epochs_steps_and_a_gain(wire: Wire) -> None:
    name = wire.create(choice())
    wire.start(name, 0)
    beside(wire, name, 1)
    assert "1 of 20 shadow epochs are completed" in compared(wire, name).verdict_text
    beside(wire, name, 899)
    assert f"{compared(wire, name).shadow_steps} of 1000 shadow steps are completed" in compared(wire, name).verdict_text
    refusal(lambda: set_mode(wire, name, "live"), Code.FAILED_PRECONDITION, "NOT_PROMOTABLE")
    beside(wire, name, 300)
    found = compared(wire, name)
    assert (found.verdict, found.gain.mean) == (admin_pb2.PROMOTION_VERDICT_PROMOTE, pytest.approx(1.0))
    set_mode(wire, name, "live")
    assert wire.status(name).mode == "live"


def test_an_epoch_ends_with_the_step_under_way_when_the_mode_changes(wire: Wire) -> None:
    """So no epoch is played by both; repeated calls have the same reply."""
    name = wire.create(agent_spec(preset("continuing-buffer"), max_epoch_steps=1_000, mode="shadow"))
    incumbent = Incumbent(wire, name)
    incumbent.play(100)
    set_mode(wire, name, "live", force=True)
    incumbent.play(1)
    assert (incumbent.reply.episode_done, incumbent.reply.advisory) == (True, False)
    incumbent.play(50)
    charged = wire.status(name)
    set_mode(wire, name, "shadow")
    assert wire.start(name, incumbent.state).advisory
    incumbent.play(1)
    assert (incumbent.reply.episode_done, incumbent.reply.advisory) == (True, True)
    incumbent.play(60)
    status = wire.status(name)
    assert status.epoch_steps == 51
    assert status.epoch_steps > charged.epoch_steps
    assert status.cumulative_reward == sum(reward for reward, _ in incumbent.seen[101:152])
    assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name)).ok


def test_what_was_counted_outlives_an_export(wire: Wire) -> None:
    name = shadow(wire)
    Incumbent(wire, name).play(150)
    chunks = list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent=name)))
    copy = f"{name}-copy"
    wire.admin.ImportAgent(
        iter([admin_pb2.ImportAgentRequest(agent=copy, chunk=one.chunk, digest=one.digest) for one in chunks])
    )
    assert compared(wire, copy) == compared(wire, name)


def test_weights_that_were_not_stored_are_those_of_episodes() -> None:
    stored = events_pb2.ShadowTotals(completed_episodes=4, reward=2.0, reward_squares=1.5, costs=[1.0], cost_squares=[0.5])
    totals = ShadowTotals.read(stored, 1)
    assert totals.means[0].mean == 0.5
    assert totals.means[0].error == pytest.approx(np.sqrt((1.5 - 4 * 0.25) / 3 / 4))
    assert totals.message() == stored
