"""A shadow agent learns everything, is charged for nothing, and becomes live only where its comparison allows it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import Constraint
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.comparisons import compare, trial_of
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import FailedPreconditionError, InvalidArgumentError
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition


def path(cost: float) -> list[control_pb2.Transition]:
    """Action 1 three times, which costs `cost` in all."""
    return [transition(reward=0.5, costs=[cost / 3, 0.0])] * 3


async def play(bench: Bench, *costs: float) -> None:
    for cost in costs:
        started = await bench.start()
        await bench.report_episode(started.episode, *path(cost))


def update(mode: str, **fields: Any) -> admin_pb2.UpdateAgentRequest:
    request = admin_pb2.UpdateAgentRequest(agent="a", update=model_pb2.AgentSpec(mode=mode), **fields)
    request.update_mask.paths.append("mode")
    return request


async def set_mode(bench: Bench, mode: str, **fields: Any) -> None:
    await bench.administration.update(update(mode, **fields))


async def test_nothing_that_the_incumbent_did_is_charged(bench: Bench) -> None:
    """Three times the budget in every episode: learned, and counted apart."""
    guard = model_pb2.Guard(max_constraint_regret=0.1, max_strong_violation=0.1)
    await bench.create(mode="shadow", guard=guard, options=model_pb2.SafePsrlOptions(method="published"))
    await play(bench, 3.0, 2.0, 3.0)
    record, status = bench.record(), record_status(bench.record())
    totals = record.totals
    assert not record.paused
    assert (totals.completed_episodes, totals.reward, totals.violations, totals.overridden_actions) == (0, 0.0, [0, 0], 0)
    sums = (totals.constraint_regret, totals.strong_violation, totals.guarded_regret, totals.guarded_violation, totals.costs)
    assert all(one == [0.0, 0.0] for one in sums)
    assert record.dual_variables.tolist() == [0.0, 0.0]
    assert not record.recent.episodes
    assert (totals.transitions, record.state.transition_counts.sum()) == (9, 9)
    assert (status.mode, status.shadow_episodes, status.completed_episodes, status.episode) == ("shadow", 3, 0, 3)
    shadow = totals.shadow
    assert (shadow.costs[0], shadow.cost_squares[0], shadow.reward) == (pytest.approx(8.0), pytest.approx(22.0), 4.5)
    reward, energy, wear = shadow.means
    assert (reward.mean, reward.error, wear) == (1.5, pytest.approx(0.0), (0.0, 0.0))
    assert energy.mean == pytest.approx(8 / 3)
    assert energy.error == pytest.approx(np.std([3.0, 2.0, 3.0], ddof=1) / np.sqrt(3))
    assert await bench.is_verified()


async def test_the_dual_variable_moves_on_only_for_live_episodes(new_bench: NewBench) -> None:
    """The shadow agent is where a live one is after as many live episodes, but for the number of the episode."""
    bench = await new_bench()
    options = model_pb2.SafePsrlOptions(method="published", pessimism_coefficient=5.0)
    await bench.create("a", mode="shadow", options=options)
    await play(bench, 1.0, 1.0)
    started = [episode.started for episode in bench.record().episodes.values()]
    assert all(one.shadow and one.next_dual_variables == one.dual_variables for one in started)
    await set_mode(bench, "live", force=True)
    live = await bench.start()
    assert not live.shadow
    assert max(live.next_dual_variables) > 0
    assert bench.record().dual_variables.tolist() == list(live.next_dual_variables)


async def test_an_episode_counts_as_what_it_was_started(bench: Bench) -> None:
    await bench.create(mode="shadow")
    started = await bench.started()
    assert started.advisory
    await set_mode(bench, "live", force=True)
    reply = await bench.stepped(path(3.0)[0], episode=1, step=0)
    assert reply.advisory, "the incumbent finishes what it has begun"
    await bench.report_episode(1, *path(3.0))
    assert (bench.record().totals.completed_episodes, bench.record().totals.shadow.completed_episodes) == (0, 1)
    live = await bench.started(request_id="x")
    assert not live.advisory
    await set_mode(bench, "shadow")
    assert (await bench.started(request_id="x")).advisory, "a repeated start is not an order any more"
    assert (await bench.act(0, episode=2)).advisory, "neither is an action of the open episode"
    await bench.report_episode(2, *path(3.0))
    totals = bench.record().totals
    assert (totals.completed_episodes, totals.shadow.completed_episodes) == (1, 1)
    assert totals.strong_violation[0] == pytest.approx(1.5)
    assert await bench.is_verified()


@pytest.mark.parametrize("method", ["certified", "published"])
async def test_no_reply_of_a_shadow_agent_orders_an_action(bench: Bench, method: str) -> None:
    await bench.create(mode="shadow", fallback=True, options=model_pb2.SafePsrlOptions(method=method))
    replies = [await bench.act(), await bench.started(request_id="b", abandon_open=True), await bench.act(0, episode=2)]
    replies += [await bench.stepped(path(1.0)[0], episode=2, step=0)]
    await bench.administration.pause("a", "")
    replies += [await bench.act(0, episode=2, step=1), await bench.stepped(path(1.0)[1], episode=2, step=1)]
    await bench.end(2)
    outside = await bench.act()
    assert outside.fallback
    assert all(reply.advisory for reply in [*replies, outside])


@pytest.mark.parametrize("how", ["events", "snapshot", "import"])
async def test_what_was_counted_outlives_a_restart(new_bench: NewBench, tmp_path: Path, how: str) -> None:
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create(mode="shadow")
    await play(bench, 3.0, 1.0)
    await bench.started()
    before = snapshot_of(bench.record(), with_policies=True)
    if how == "snapshot":
        await bench.snapshot()
    if how == "import":
        await bench.administration.import_snapshot("b", before)
        kept = [episode.is_shadow for episode in bench.record("b").episodes.values()]
        assert (bench.record("b").totals, kept) == (bench.record("a").totals, [True, True])
        return
    await bench.close()
    again = await new_bench(f"sqlite:{tmp_path}")
    await again.agents.record("a")
    assert snapshot_of(again.record(), with_policies=True) == before
    assert again.record().open_episodes[0].is_shadow


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda totals: setattr(totals.shadow, "completed_episodes", 9), "more episodes than it started"),
        (lambda totals: totals.shadow.costs.append(1.0), "one entry per constraint"),
        (lambda totals: setattr(totals.shadow, "reward", float("nan")), "not finite"),
    ],
)
async def test_impossible_counters_are_not_imported(bench: Bench, change: Any, complaint: str) -> None:
    await bench.create(mode="shadow")
    await play(bench, 3.0)
    snapshot = snapshot_of(bench.record(), with_policies=True)
    change(snapshot.totals)
    with pytest.raises(InvalidArgumentError, match=complaint):
        await bench.administration.import_snapshot("b", snapshot)


async def test_an_unknown_mode_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidArgumentError, match=r"spec.mode: must be one of live, shadow, got 'night'"):
        await bench.create(mode="night")


async def test_a_declared_agent_keeps_its_mode(bench: Bench) -> None:
    """A restart of a server that declares its agents neither promotes nor fails."""
    await bench.create(mode="shadow")
    spec = model_pb2.AgentSpec()
    spec.CopyFrom(bench.record().definition.message)
    spec.ClearField("mode")
    assert await bench.administration.declare("a", spec, "declared") == []
    assert bench.record().definition.is_shadow


# --- promotion


def choice(reward: float = 1.0, learned: bool = False) -> model_pb2.AgentSpec:
    """One state, two steps. Action 0 earns nothing; action 1 earns `reward`, and costs 0.1 of a budget of 1."""
    cmdp = CmdpSpec(
        num_states=1,
        num_actions=2,
        horizon=2,
        reward=[[0.0, reward]],
        reward_learned=learned,
        constraints=[Constraint("energy", [[0.0, 0.1]], 1.0, 0.0)],
    )
    return model_pb2.AgentSpec(cmdp=cmdp_to_message(cmdp), mode="shadow")


async def beside(bench: Bench, episodes: int, action: int = 0, **fields: Any) -> None:
    for _ in range(episodes):
        started = await bench.start()
        await bench.report_episode(started.episode, *[transition(0, action, 0, **fields)] * 2)


async def test_promotion_needs_episodes_a_certificate_and_a_gain(bench: Bench) -> None:
    await bench.administration.create("a", choice())
    await beside(bench, 19)
    with pytest.raises(FailedPreconditionError, match="19 of 20 shadow episodes are completed; force makes"):
        await set_mode(bench, "live")
    await beside(bench, 1)
    found = compare(trial_of(bench.record()))
    assert (found.verdict, found.gain.mean) == (admin_pb2.PROMOTION_VERDICT_PROMOTE, pytest.approx(2.0))
    assert "may be promoted: its plan is certified, and its gain of 2 ± 0 is above zero" in found.verdict_text
    await set_mode(bench, "live", dry_run=True)
    assert bench.record().definition.is_shadow
    await set_mode(bench, "live", reason="it gains")
    entry = bench.record().log[-1]
    assert (entry.kind, entry.reason) == (events_pb2.LOG_KIND_UPDATED, "it gains")
    assert list(entry.details) == ["mode is live, was shadow"]
    version = bench.record().version
    await set_mode(bench, "live")
    assert bench.record().version == version, "repeated, it changes nothing and checks nothing"


async def test_no_gain_is_not_promoted(bench: Bench) -> None:
    """The incumbent plays the best action already."""
    await bench.administration.create("a", choice())
    await beside(bench, 20, action=1)
    for dry_run in (False, True):
        with pytest.raises(FailedPreconditionError, match="gain of 0 ± 0 is not above zero by") as refused:
            await set_mode(bench, "live", dry_run=dry_run)
    assert refused.value.reason == "NOT_PROMOTABLE"
    assert bench.record().definition.is_shadow
    await set_mode(bench, "live", force=True, reason="on order")
    assert not bench.record().definition.is_shadow
    assert list(bench.record().log[-1].details) == [
        "mode is live, was shadow",
        "promoted by force: its comparison was not checked",
    ]


async def test_a_method_without_certificates_is_not_promoted(bench: Bench) -> None:
    spec = choice()
    spec.options.method = "published"
    await bench.administration.create("a", spec)
    await beside(bench, 20)
    with pytest.raises(FailedPreconditionError, match="its method has no certificates"):
        await set_mode(bench, "live")


async def test_other_fields_do_not_smuggle_a_promotion(bench: Bench) -> None:
    await bench.administration.create("a", choice())
    request = update("live")
    request.update.cmdp.constraints.add(name="energy", cost_budget=2.0)
    request.update_mask.paths.append("cmdp.constraints.energy.cost_budget")
    with pytest.raises(FailedPreconditionError, match="0 of 20"):
        await bench.administration.update(request)
    assert bench.record().definition.cost_budgets == [1.0]


async def test_a_learned_reward_is_uncertain(bench: Bench) -> None:
    """The plan never saw what it would play: its promise is a guess, and counts as one."""
    await bench.administration.create("a", choice(reward=1.0, learned=True))
    await beside(bench, 30, reward=0.5)
    found = compare(trial_of(bench.record()))
    assert found.verdict == admin_pb2.PROMOTION_VERDICT_NO_GAIN
    assert found.plan.reward.error > 0.3


async def test_a_given_policy_is_evaluated(bench: Bench) -> None:
    await bench.administration.create("a", choice())
    policy = model_pb2.Policy(horizon=2, num_states=1, actions=[1, 0])
    found = compare(trial_of(bench.record()), policy)
    assert (found.policy.reward.mean, found.policy.costs[0].mean) == (pytest.approx(1.0), pytest.approx(0.1))
    assert not found.HasField("incumbent")
    with pytest.raises(InvalidArgumentError, match=r"policy: must have 2 x 1 actions"):
        compare(trial_of(bench.record()), model_pb2.Policy(horizon=1, num_states=1, actions=[1]))
    with pytest.raises(InvalidArgumentError, match=r"policy.actions\[0\]: 7 is not available"):
        compare(trial_of(bench.record()), model_pb2.Policy(horizon=2, num_states=1, actions=[7, 0]))


async def test_concurrent_promotions_are_one(bench: Bench) -> None:
    await bench.administration.create("a", choice())
    await beside(bench, 20)
    await asyncio.gather(*[set_mode(bench, "live", reason=str(i)) for i in range(4)])
    assert bench.record().definition_version == 2
