"""Explanations through the service: of the policy that is played, by the library's values, without a change of the agent."""

from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint
from safe_psrl.explanation import action_values, mixture_of, plan_with_budgets
from safe_psrl_proto.v1 import admin_pb2, model_pb2
from safe_psrl_server.agents.explanations import explain, situation_of
from safe_psrl_server.agents.messages import cmdp_to_message
from tests.safe_psrl_server.agents.test_drift_agents import PATHS, drifting, play
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import Wire, refusal

METHODS = ("certified", "published")
STATES, ACTIONS = ["idle", "low", "high", "full"], ["wait", "send", "boost"]


def method(name: str) -> dict[str, Any]:
    return {"options": model_pb2.SafePsrlOptions(method=name)}


def named() -> model_pb2.AgentSpec:
    spec = make_spec()
    spec.cmdp.state_names[:], spec.cmdp.action_names[:] = STATES, ACTIONS
    return spec


@pytest.mark.parametrize("name", METHODS)
async def test_the_latest_policy_is_explained_by_the_present_posterior(bench: Bench, name: str) -> None:
    await bench.create(**method(name))
    await play(bench, PATHS[:5])
    await bench.start()
    record = bench.record()
    digest = record.digest()
    reply = explain(situation_of(record, place=1, step=2))
    assert record.digest() == digest
    latest = record.latest_episode
    assert latest is not None
    assert (reply.episode, reply.begun, reply.action) == (6, True, latest.policy[2, 1])
    stored = latest.started.policy
    parts = [(part.share, part.actions) for part in stored.mixture] or [(1.0, stored.actions)]
    mixture = np.array([actions for _, actions in parts], np.int32).reshape(-1, 3, 4)
    expected = action_values(record.definition.learner, record.state, mixture, np.array([one for one, _ in parts]), 2, 1)
    assert [one.action for one in reply.actions] == list(expected.actions) == [0, 1, 2]
    for i, one in enumerate(reply.actions):
        assert [value.mean for value in (one.reward, *one.costs)] == expected.values[i].tolist()
        assert [value.sigma for value in (one.reward, *one.costs)] == expected.sigmas[i].tolist()
        assert (one.visits, one.probability) == (expected.visits[i], expected.probabilities[i])
    assert sum(one.probability for one in reply.actions) == pytest.approx(1)
    assert list(reply.constraint_names) == ["energy", "wear"]
    started = latest.started
    prices = [dual / scale for dual, scale in zip(started.dual_variables, started.dual_scale, strict=True)]
    assert list(reply.cost_prices) == ([] if name == "certified" else prices)


@pytest.mark.parametrize("name", METHODS)
async def test_other_budgets_are_planned_for_the_next_episode(bench: Bench, name: str) -> None:
    await bench.create(**method(name))
    await play(bench, PATHS[:3])
    record = bench.record()
    reply = explain(situation_of(record, place=0, step=0))
    assert [choice.budget_factor for choice in reply.budget_choices] == [0.9, 1.0, 1.1]
    assert [one.action for one in reply.actions] == [0, 1]  # action 2 is not available in state 0
    for choice in reply.budget_choices:
        plan = plan_with_budgets(record.definition.learner, record.state, choice.budget_factor)
        assert plan is not None
        mixture, shares = mixture_of(plan)
        played = [float(shares[mixture[:, 0, 0] == one.action].sum()) for one in reply.actions]
        assert list(choice.probabilities) == pytest.approx(played)


async def test_a_mixture_spends_each_budget(bench: Bench) -> None:
    """One state, one step: action 1 has reward 1 at the cost 1, and the price of cost is 1."""
    limit = Constraint("cost", [[0.0, 1.0]], 0.5, 0.0)
    problem = CmdpSpec(num_states=1, num_actions=2, horizon=1, reward=[[0.0, 1.0]], constraints=[limit])
    await bench.administration.create("a", model_pb2.AgentSpec(cmdp=cmdp_to_message(problem)))
    await bench.start()
    reply = explain(situation_of(bench.record(), place=0, step=0))
    assert [one.probability for one in reply.actions] == pytest.approx([0.5, 0.5])
    assert [choice.probabilities[1] for choice in reply.budget_choices] == pytest.approx([0.45, 0.5, 0.55])
    assert list(reply.cost_prices) == pytest.approx([1.0])


async def test_before_the_first_episode_the_next_plan_is_explained(bench: Bench) -> None:
    await bench.create()
    reply = explain(situation_of(bench.record(), place=0, step=0))
    assert (reply.episode, reply.begun) == (1, False)
    chosen = [one.probability for one in reply.actions]
    assert list(reply.budget_choices[1].probabilities) == pytest.approx(chosen)
    started = await bench.started()
    assert started.action == reply.action


async def test_after_an_update_the_next_plan_is_explained(bench: Bench) -> None:
    """The latest policy is one for another problem."""
    await bench.begin()
    update = make_spec()
    update.cmdp.constraints[0].cost_budget = 2.0
    request = admin_pb2.UpdateAgentRequest(agent="a", update=update)
    request.update_mask.paths.append("cmdp.constraints.energy.cost_budget")
    await bench.administration.update(request)
    reply = explain(situation_of(bench.record(), place=0, step=0))
    assert (reply.episode, reply.begun) == (2, False)


async def test_the_situation_is_a_copy(bench: Bench) -> None:
    """What is learned afterwards does not change it."""
    await bench.begin()
    situation = situation_of(bench.record(), place=0, step=0)
    await bench.report(transition(), episode=1, step=0)
    assert situation.learned.transition_counts.sum() == 0
    assert bench.record().state.transition_counts.sum() == 1


def test_names_are_in_the_reply(wire: Wire) -> None:
    agent = wire.create(named())
    reply = wire.admin.ExplainAction(admin_pb2.ExplainActionRequest(agent=agent, state=2, step=1))
    assert reply.state_name == "high"
    assert [one.name for one in reply.actions] == ACTIONS


@pytest.mark.parametrize(("place", "step", "field"), [(4, 0, "state"), (-1, 0, "state"), (0, 3, "step"), (0, -1, "step")])
def test_a_place_outside_the_problem_is_refused(wire: Wire, place: int, step: int, field: str) -> None:
    request = admin_pb2.ExplainActionRequest(agent=wire.create(), state=place, step=step)
    assert refusal(lambda: wire.admin.ExplainAction(request)).fields == [field]


def test_names_cannot_change(wire: Wire) -> None:
    agent = wire.create(named())
    other = named()
    other.cmdp.state_names[0] = "empty"
    request = admin_pb2.UpdateAgentRequest(agent=agent, update=other)
    request.update_mask.paths.append("cmdp.state_names")
    assert refusal(lambda: wire.admin.UpdateAgent(request)).fields == ["update_mask"]


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a", "b", "c", "a"], ["a", "b", "c", " "], ["a", "b", "c", "d" * 101]])
def test_wrong_names_are_refused(wire: Wire, names: list[str]) -> None:
    spec = make_spec()
    spec.cmdp.state_names[:] = names
    [field] = refusal(lambda: wire.create(spec)).fields
    assert "state_names" in field


async def test_drift_is_logged_with_names(bench: Bench) -> None:
    spec = named()
    spec.drift.CopyFrom(drifting("alert")["drift"])
    await bench.administration.create("a", spec)
    await play(bench, PATHS)
    details = [line for entry in bench.record().log for line in entry.details]
    assert any(line.startswith("state 0 (idle), action 0 (wait): ") for line in details)
    assert await bench.is_verified()
