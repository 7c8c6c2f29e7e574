"""Explanations and previews of continuing tasks through the service: by the library's values, without a change of the agent."""

from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, ContinuingPsrl, SafePsrlOptions, preset, warm_up_continuing
from safe_psrl.average_explanation import action_advantages, epoch_plan_with_budgets
from safe_psrl.comparison import average_values
from safe_psrl.learner import AgentState
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import table_of_policy, unpack
from safe_psrl_testbed import TabularEnvironment
from tests.safe_psrl.continuing_cases import continuing_case
from tests.safe_psrl_server.agents.test_continuing_agents import SEED, agent_spec, moved
from tests.safe_psrl_server.wire import Code, Wire, refusal


@pytest.fixture(scope="module", autouse=True)
def compiled_epochs() -> None:
    warm_up_continuing()


def buffer() -> tuple[CmdpSpec, Any]:
    spec = preset("continuing-buffer")
    return spec, spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True)


def play(wire: Wire, name: str, spec: CmdpSpec, transitions: Any, steps: int) -> int:
    """The state in which the task is then."""
    environment = TabularEnvironment(spec, transitions)
    state = environment.reset(seed=3)
    action = wire.start(name, state).action
    for _ in range(steps):
        outcome = environment.step(action)
        action, state = wire.step(name, moved(state, action, outcome)).action, outcome.next_state
    return state


def explained(wire: Wire, name: str, state: int, step: int = 0) -> admin_pb2.ExplainActionResponse:
    request = admin_pb2.ExplainActionRequest(agent=name, state=state, step=step)
    reply: admin_pb2.ExplainActionResponse = wire.admin.ExplainAction(request)
    return reply


def learned(wire: Wire, name: str, learner: ContinuingPsrl) -> AgentState:
    """What the agent has learned, as the library has it."""
    counts = unpack(wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=name)).transition_counts)
    status = wire.status(name)
    duals = np.array([one.dual_variable for one in status.constraints])
    blank = learner.initial_state().learned
    return AgentState(status.episode, duals, *blank.tables._replace(transition_counts=counts))


@pytest.mark.parametrize("method", ["certified", "published"])
def test_the_epochs_policy_is_explained_by_the_present_posterior(wire: Wire, method: str) -> None:
    spec, transitions = buffer()
    name = wire.create(agent_spec(spec, method))
    start = play(wire, name, spec, transitions, 200)
    before = wire.status(name).state_digest
    reply = explained(wire, name, 3)
    learner = ContinuingPsrl(spec, SafePsrlOptions(method), SEED)
    state = learned(wire, name, learner)
    policy = wire.admin.GetPolicy(admin_pb2.GetPolicyRequest(agent=name)).policy
    expected = action_advantages(learner, state, table_of_policy(policy), 3)
    for i, one in enumerate(reply.actions):
        assert [value.mean for value in (one.reward, *one.costs)] == pytest.approx(expected.values[i])
        assert [value.sigma for value in (one.reward, *one.costs)] == pytest.approx(expected.sigmas[i])
        assert (one.visits, one.probability) == (expected.visits[i], pytest.approx(expected.probabilities[i]))
    averages = average_values(learner.base, state, table_of_policy(policy), 3)
    shown = reply.averages.reward, *reply.averages.costs
    assert [value.mean for value in shown] == pytest.approx(averages.means)
    assert [value.sigma for value in shown] == pytest.approx(averages.sigmas)
    for choice in reply.budget_choices:
        plan = epoch_plan_with_budgets(learner, state, 200, start, choice.budget_factor)
        assert plan is not None
        assert list(choice.probabilities) == pytest.approx(plan.probabilities[3])
    assert [choice.budget_factor for choice in reply.budget_choices] == [0.9, 1.0, 1.1]
    assert (reply.begun, reply.episode) == (True, wire.status(name).episode)
    assert wire.status(name).state_digest == before


def test_the_action_is_that_of_the_step(wire: Wire) -> None:
    """A randomised policy draws another one at other steps; what is explained is what is played."""
    spec, transitions = buffer()
    name = wire.create(agent_spec(spec))
    play(wire, name, spec, transitions, 150)
    status = wire.status(name)
    for step in range(3):
        request = control_pb2.GetActionRequest(agent=name, state=2, episode=status.episode, step=0)
        assert explained(wire, name, 2).action == wire.control.GetAction(request).action
        assert 0 <= explained(wire, name, 2, step).action < spec.num_actions


def test_before_the_first_epoch_a_plan_is_explained(wire: Wire) -> None:
    spec, _ = buffer()
    name = wire.create(agent_spec(spec))
    reply = explained(wire, name, 0)
    assert (reply.begun, reply.episode, wire.status(name).episode) == (False, 1, 0)
    assert reply.action == wire.start(name, 0).action
    refusal(lambda: explained(wire, name, 99), Code.INVALID_ARGUMENT, field="state")
    refusal(lambda: explained(wire, name, 0, 10_000), Code.INVALID_ARGUMENT, field="step")


def test_the_price_of_cost_is_reward_per_cost_between_budgets(wire: Wire) -> None:
    """One state; action 1 has reward 1 at the cost 1."""
    table = model_pb2.Table(shape=[1, 2], values=[0.0, 1.0])
    limit = model_pb2.Constraint(name="c", cost=table, cost_budget=0.5, satisfiable_cost=0.0)
    cmdp = model_pb2.CmdpSpec(num_states=1, num_actions=2, continuing=True, reward=table, constraints=[limit])
    name = wire.create(model_pb2.AgentSpec(cmdp=cmdp))
    reply = explained(wire, name, 0)
    assert list(reply.cost_prices) == [pytest.approx(1.0)]
    shares = [choice.probabilities[1] for choice in reply.budget_choices]
    assert shares == pytest.approx([0.45, 0.5, 0.55], rel=1e-3)
    assert reply.averages.costs[0].mean == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("num_constraints", [1, 2])
def test_a_dry_run_shows_averages_before_and_after(wire: Wire, num_constraints: int) -> None:
    spec, transitions = continuing_case(4, num_constraints=num_constraints, share=0.6)
    message = agent_spec(spec)
    name = wire.create(message)
    start = play(wire, name, spec, transitions, 60)
    digest = wire.status(name).state_digest
    message.cmdp.constraints[0].cost_budget = 0.95
    request = admin_pb2.UpdateAgentRequest(agent=name, update=message, dry_run=True)
    request.update_mask.paths.append(f"cmdp.constraints.{spec.constraint_names[0]}.cost_budget")
    reply = wire.admin.UpdateAgent(request)
    assert len(reply.changes) == 1
    learner = ContinuingPsrl(spec, SafePsrlOptions("certified"), SEED)
    state = learned(wire, name, learner)
    plan = learner.plan(state, 60, start)
    assert plan.certified_costs is not None
    assert list(reply.before.certified_costs) == pytest.approx(plan.certified_costs)
    expected = average_values(learner.base, state, plan.probabilities, start).means
    assert [reply.before.reward, *reply.before.costs] == pytest.approx(expected)
    assert reply.after.reward >= reply.before.reward - 1e-9
    if num_constraints == 1:
        assert reply.after.certified_costs[0] > reply.before.certified_costs[0]
    assert wire.status(name).state_digest == digest
