"""Updates of a definition while the agent lives: what they change, from when on, and what they leave alone."""

from typing import Any

import pytest

from safe_psrl_proto.v1 import admin_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.administration import Updated
from safe_psrl_server.agents.history import history_of
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import FailedPreconditionError, InvalidArgumentError
from tests.safe_psrl_server.specs import make_spec, set_fields, transition

BUDGET = "cmdp.constraints.energy.cost_budget"


async def update(bench: Any, path: str, value: Any, agent: str = "a", **fields: Any) -> Updated:
    """Set the field of the definition at `path`."""
    request = admin_pb2.UpdateAgentRequest(agent=agent, update=make_spec(), reason=fields.pop("reason", ""), **fields)
    request.update_mask.paths.append(path)
    set_fields(request.update, {path.replace("energy", "0").replace("wear", "1"): value})
    return await bench.administration.update(request)


async def play(bench: Any, episode: int, *costs: float, agent: str = "a") -> None:
    """Report a whole episode that stays in state 0 and pays `costs` for the first constraint."""
    path = [transition(reward=0.5, costs=[cost, 0.0]) for cost in costs]
    await bench.report_episode(episode, *path, agent=agent)


async def test_a_new_budget_is_that_of_the_next_episode(bench: Any) -> None:
    """The open episode is counted against the budget that it was planned with, the next one against the new one."""
    await bench.begin()
    done = await update(bench, BUDGET, 1.0, reason="the night tariff")
    assert done.changes == ["constraints.energy.cost_budget is 1.0, was 1.5"]
    await play(bench, 1, 0.5, 0.5, 0.2)
    record = bench.record()
    assert record.totals.constraint_regret[0] == pytest.approx(1.2 - 1.5)
    assert record.totals.violations[0] == 0
    second = await bench.start()
    assert list(second.cost_budgets) == pytest.approx([1.0, 2.4])
    await play(bench, 2, 0.5, 0.5, 0.2)
    assert record.totals.constraint_regret[0] == pytest.approx(1.2 - 1.5 + 1.2 - 1.0)
    assert record.totals.strong_violation[0] == pytest.approx(0.2)
    assert record.totals.violations[0] == 1
    assert record_status(record).constraints[0].cumulative_budget == pytest.approx(1.5 + 1.0)
    assert [point.constraints[0].cost_budget for point in history_of(record.series, record.log).points] == [1.5, 1.0]
    assert record.definition_version == 2
    assert await bench.is_verified()


async def test_the_log_says_who_did_what_and_why(bench: Any) -> None:
    await bench.begin()
    await update(bench, BUDGET, 1.0, reason="the night tariff")
    await bench.administration.pause("a", "maintenance")
    await bench.administration.resume("a", "maintenance is over")
    entries = bench.record().log
    kinds = [events_pb2.LogKind.Name(entry.kind).removeprefix("LOG_KIND_").lower() for entry in entries]
    assert kinds == ["created", "updated", "paused", "resumed"]
    assert [entry.episode for entry in entries] == [0, 1, 1, 1]
    assert entries[1].reason == "the night tariff"
    assert entries[1].details == ["constraints.energy.cost_budget is 1.0, was 1.5"]
    assert entries[2].reason == "maintenance"
    assert entries[3].reason == "maintenance is over"
    await bench.snapshot()
    assert await bench.is_verified()


async def test_repeating_an_update_changes_nothing(bench: Any) -> None:
    """Not even with the version that the caller saw before the first one."""
    await bench.create()
    await update(bench, BUDGET, 1.0, expected_version=1)
    version = bench.record().version
    again = await update(bench, BUDGET, 1.0, expected_version=1)
    assert again.changes == []
    assert bench.record().version == version


async def test_an_update_of_an_outdated_definition_is_refused(bench: Any) -> None:
    await bench.create()
    await update(bench, BUDGET, 1.0)
    with pytest.raises(FailedPreconditionError, match="has version 2, not 1") as refused:
        await update(bench, BUDGET, 1.2, expected_version=1)
    assert refused.value.reason == "DEFINITION_CHANGED"
    assert bench.record().definition.cost_budgets[0] == 1.0


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("cmdp.horizon", 4, "cannot be updated"),
        ("cmdp.num_states", 5, "cannot be updated"),
        ("cmdp.support", None, "cannot be updated"),
        ("cmdp.dirichlet_prior", None, "cannot be updated"),
        ("seed", 3, "cannot be updated"),
        ("environment", None, "cannot be updated"),
        ("cmdp.constraints.energy.name", "power", "cannot be updated"),
        ("options.speed", None, "cannot be updated: budgets.* the limits on open episodes and epochs, and the mode can change"),
        (BUDGET, 9.0, "at most the horizon"),
        (BUDGET, float("nan"), "finite|number"),
        ("cmdp.constraints.wear.satisfiable_cost", 2.9, "below the budget"),
        ("options.confidence", 0.2, "probability above 0.5"),
        ("drift.memory_visits", 0.5, "above 1"),
        ("drift.on_detect", "weep", "alert, forget, pause"),
        ("max_open_episodes", 2000, "from 1 to 1000"),
    ],
)
async def test_an_impossible_update_names_its_field_and_changes_nothing(
    bench: Any, path: str, value: Any, complaint: str
) -> None:
    await bench.create()
    record, version = bench.record(), bench.record().version
    with pytest.raises(InvalidArgumentError, match=complaint):
        await update(bench, path, value) if value is not None else await bench.administration.update(named(path))
    assert record.version == version
    assert record.definition_version == 1


def named(path: str) -> admin_pb2.UpdateAgentRequest:
    """A request whose mask names `path`."""
    request = admin_pb2.UpdateAgentRequest(agent="a")
    request.update_mask.paths.append(path)
    return request


async def test_a_mask_without_fields_is_refused(bench: Any) -> None:
    await bench.create()
    with pytest.raises(InvalidArgumentError, match="must name the fields"):
        await bench.administration.update(admin_pb2.UpdateAgentRequest(agent="a", update=make_spec()))
    with pytest.raises(InvalidArgumentError, match="the agent has no constraint 'noise'"):
        await bench.administration.update(named("cmdp.constraints.noise.cost_budget"))
    with pytest.raises(InvalidArgumentError, match="the update has no constraint 'energy'"):
        await bench.administration.update(named(BUDGET))


async def test_what_is_learned_cannot_change(bench: Any) -> None:
    """Whether a cost is known is part of what was learned of it."""
    await bench.create()
    with pytest.raises(InvalidArgumentError, match="cannot change"):
        await bench.administration.declare("a", make_spec(learned=True), "declared")


async def test_an_open_episode_is_played_by_the_definition_it_began_with(bench: Any) -> None:
    """An action that was taken away may still be reported, and a known reward that was left out is the old one."""
    await bench.begin()
    await bench.snapshot()
    available = [0.0, 1.0, 0.0] + [1.0] * 9
    request = admin_pb2.UpdateAgentRequest(agent="a", update=make_spec())
    request.update.cmdp.available_actions.values[:] = available
    request.update.cmdp.reward.values[:] = [0.9] * 12
    request.update_mask.paths.extend(["cmdp.available_actions", "cmdp.reward"])
    await bench.administration.update(request)
    await bench.report(transition(action=0), episode=1, step=0)
    assert bench.record().episodes[1].transitions[0].reward == 0.0
    await bench.snapshot()  # the old definition is in it
    assert await bench.is_verified()
    assert (await bench.report(transition(action=0), episode=1, step=0)).duplicate
    await bench.report_episode(1, *[transition(action=0)] * 3)
    await bench.start()
    with pytest.raises(InvalidArgumentError, match="not available"):
        await bench.report(transition(action=0), episode=2, step=0)
    await bench.report(transition(action=1), episode=2, step=0)
    assert bench.record().episodes[2].transitions[0].reward == 0.9
    assert await bench.is_verified()


async def test_another_method(bench: Any) -> None:
    """Options of the method before do not stand in the way."""
    await bench.begin()
    await update(bench, "options.method", "published")
    assert bench.record().definition.learner.options.method == "published"
    await play(bench, 1, 0.0, 0.0, 0.0)
    assert not (await bench.start()).certified_costs


async def test_a_fallback_policy_comes_and_goes(bench: Any) -> None:
    await bench.create()
    request = admin_pb2.UpdateAgentRequest(agent="a", update=make_spec(fallback=True))
    request.update_mask.paths.append("fallback_policy")
    await bench.administration.update(request)
    await bench.administration.pause("a", "")
    assert (await bench.act(0)).fallback
    request.update.ClearField("fallback_policy")
    await bench.administration.update(request)
    with pytest.raises(FailedPreconditionError, match="paused"):
        await bench.act(0)


async def test_detection_of_drift_is_switched_off_and_on(bench: Any) -> None:
    """Its memory goes and begins anew; what was learned stays."""
    await bench.begin()
    await play(bench, 1, 0.0, 0.0, 0.0)
    assert bench.record().state.recent_counts.sum() > 0
    await update(bench, "drift.detect", False)
    assert bench.record().state.recent_counts.size == 0
    await bench.start()
    await play(bench, 2, 0.0, 0.0, 0.0)
    await update(bench, "drift.detect", True)
    state = bench.record().state
    assert state.recent_counts.shape == state.transition_counts.shape
    assert not state.recent_counts.any()
    assert state.transition_counts.sum() == 6
    await bench.snapshot()
    assert await bench.is_verified()


async def test_a_dry_run_changes_nothing_and_says_what_would(bench: Any) -> None:
    await bench.create()
    version = bench.record().version
    tried = await update(bench, BUDGET, 0.5, dry_run=True)
    assert tried.changes == ["constraints.energy.cost_budget is 0.5, was 1.5"]
    assert tried.definition.cost_budgets[0] == 0.5
    assert bench.record().version == version


async def test_a_declared_agent_is_brought_to_its_definition(bench: Any) -> None:
    spec = make_spec()
    assert await bench.administration.declare("a", spec, "declared") == []
    assert await bench.administration.declare("a", spec, "declared") == []
    spec.cmdp.constraints[0].cost_budget = 1.0
    assert await bench.administration.declare("a", spec, "declared") == ["constraints.energy.cost_budget is 1.0, was 1.5"]
    with pytest.raises(InvalidArgumentError, match=r"spec.seed.*cannot change"):
        await bench.administration.declare("a", model_pb2.AgentSpec(cmdp=spec.cmdp, seed=4), "declared")
