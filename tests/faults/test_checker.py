"""The checker finds nothing in a correct history, and every violation in an incorrect one."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from safe_psrl import SafePsrl, Transition
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.faults.checker import CONSTRAINT_GAUGES, GAUGES, Verdict, View, first_acknowledged, judge
from tests.faults.history import ERROR, OK, UNKNOWN, Entry
from tests.faults.replay import problem_of
from tests.faults.worlds import World

AGENT, SEED, EPISODES = "a", 3, 2
Entries = list[Entry]
Doctored = Callable[[Entries, View], None]


def entry(number: float, call: str, request: Any, reply: Any, expected: str = "OK") -> Entry:
    return Entry(AGENT, call, request, number, number + 0.5, OK, "OK", reply, expected)


def honest() -> tuple[Entries, View]:
    """Two episodes played by the algorithm itself, and what a correct service reports then."""
    world, chosen = World(1, learned=False), random.Random(1)
    spec = world.spec(SEED)
    learner = SafePsrl(problem_of(spec), seed=SEED)
    memory, counts = learner.initial_state(), np.zeros((1, 4, 2, 4), np.int64)
    created = admin_pb2.CreateAgentRequest(agent=AGENT, spec=spec)
    entries = [entry(0, "CreateAgent", created, admin_pb2.CreateAgentResponse())]
    rewards, costs = [0.0] * EPISODES, [0.0] * EPISODES
    for k in range(EPISODES):
        memory, plan = learner.start_episode(memory)
        started = control_pb2.StartEpisodeResponse(
            episode=k + 1,
            action=int(plan.policy[0, 0]),
            predicted_costs=plan.predicted_costs,
            dual_variables=plan.next_dual_variables,
        )
        start = control_pb2.StartEpisodeRequest(agent=AGENT, request_id=str(k), state=0)
        entries.append(entry(len(entries), "StartEpisode", start, started))
        state = 0
        for step in range(world.horizon):
            action = int(plan.policy[step, state])
            seen = world.step(chosen, state, action)
            done = step == world.horizon - 1
            reply = control_pb2.StepResponse(episode=k + 1, step=step, episode_done=done)
            if not done:
                reply.action = int(plan.policy[step + 1, seen.next_state])
            request = control_pb2.StepRequest(agent=AGENT, episode=k + 1, step=step, transition=seen)
            entries.append(entry(len(entries), "Step", request, reply))
            memory = learner.observe(memory, Transition(step, state, action, seen.next_state, seen.reward, tuple(seen.costs)))
            counts[0, state, action, seen.next_state] += 1
            rewards[k], costs[k] = rewards[k] + seen.reward, costs[k] + seen.costs[0]
            state = seen.next_state
    regrets = np.cumsum([cost - spec.cmdp.constraints[0].cost_budget for cost in costs])
    status = admin_pb2.AgentStatus(
        agent=AGENT,
        episode=EPISODES,
        completed_episodes=EPISODES,
        transitions=int(counts.sum()),
        cumulative_reward=sum(rewards),
        last_reward=rewards[-1],
        visited_ratio=float((counts.sum(axis=(0, 3)) > 0).mean()),
        definition_version=1,
        state_digest="d",
        constraints=[
            admin_pb2.ConstraintStatus(
                name="cost-0",
                last_cost=costs[-1],
                mean_cost=sum(costs) / EPISODES,
                constraint_regret=regrets[-1],
                constraint_regret_max=max(0.0, regrets.max()),
                violations=int(sum(regret > 0 for regret in np.diff(regrets, prepend=0.0))),
                dual_variable=memory.dual_variables[0],
            )
        ],
    )
    gauges = {(gauge, AGENT, ""): float(getattr(status, field)) for field, gauge in GAUGES.items()}
    gauges |= {
        (gauge, AGENT, "cost-0"): float(getattr(status.constraints[0], field)) for field, gauge in CONSTRAINT_GAUGES.items()
    }
    return entries, View(status, counts, admin_pb2.VerifyAgentResponse(ok=True, state_digest="d"), gauges)


def verdict_after(doctor: Doctored) -> Verdict:
    entries, view = honest()
    doctor(entries, view)
    return judge(entries, {AGENT: view})


def steps(entries: Entries) -> list[Entry]:
    return [entry for entry in entries if entry.call == "Step"]


def starts(entries: Entries) -> list[Entry]:
    return [entry for entry in entries if entry.call == "StartEpisode"]


def test_an_honest_history_has_no_findings() -> None:
    verdict = verdict_after(lambda _entries, _view: None)
    assert verdict.findings == []
    assert (verdict.lost, verdict.duplicated, verdict.acknowledged) == (0, 0, 19)


def look(number: float, version: int, transitions: int, digest: str = "") -> Entry:
    status = admin_pb2.AgentStatus(version=version, transitions=transitions, state_digest=digest or str(version))
    return entry(number, "GetAgent", admin_pb2.GetAgentRequest(agent=AGENT), admin_pb2.GetAgentResponse(status=status))


def give_another_action(entries: Entries, _view: View) -> None:
    first = steps(entries)[0]
    question = control_pb2.GetActionRequest(agent=AGENT, episode=1, step=1, state=first.request.transition.next_state)
    reply = control_pb2.GetActionResponse(episode=1, step=1, action=1 - first.reply.action)
    entries.append(entry(50, "GetAction", question, reply))


def play_another_action_than_the_algorithm(entries: Entries, _view: View) -> None:
    steps(entries)[0].reply.action = 1 - steps(entries)[0].reply.action


def skip_an_episode(entries: Entries, _view: View) -> None:
    starts(entries)[1].reply.episode = 3


def answer_a_start_in_two_ways(entries: Entries, _view: View) -> None:
    other = control_pb2.StartEpisodeResponse()
    other.CopyFrom(starts(entries)[0].reply)
    other.predicted_reward += 1
    entries.append(starts(entries)[0]._replace(reply=other))


def change_a_dual_variable(entries: Entries, _view: View) -> None:
    starts(entries)[0].reply.dual_variables[0] += 0.5


def call_a_first_report_a_repetition(entries: Entries, _view: View) -> None:
    steps(entries)[3].reply.duplicate = True


def count(view: View, more: int) -> None:
    view.counts[tuple(np.argwhere(view.counts)[0])] += more


def miscount_in_the_status(_entries: Entries, view: View) -> None:
    view.status.constraints[0].constraint_regret += 0.25


def miscount_in_a_gauge(_entries: Entries, view: View) -> None:
    view.gauges["observed_transitions", AGENT, ""] += 1  # type: ignore[index]  # a dictionary here


@pytest.mark.parametrize(
    ("doctor", "finding"),
    [
        (lambda entries, _: entries.append(steps(entries)[0]._replace(begin=50, end=51)), "was entered 2 times"),
        (call_a_first_report_a_repetition, "never sent before"),
        (lambda _, view: count(view, -1), "the posterior has 15"),
        (lambda _, view: count(view, 1), "the posterior has 17"),
        (give_another_action, "the action was"),
        (play_another_action_than_the_algorithm, "other actions than without interruption"),
        (lambda entries, _: entries.remove(steps(entries)[2]), "the steps of episode 1 are"),
        (skip_an_episode, "the episodes are [1, 3]"),
        (answer_a_start_in_two_ways, "answered in two ways"),
        (lambda entries, _: entries.extend([look(50, 20, 16), look(51, 19, 16)]), "version 19 was seen after 20"),
        (lambda entries, _: entries.extend([look(50, 20, 16, "one"), look(51, 20, 16, "two")]), "with two states"),
        (lambda entries, _: entries.append(look(50, 20, 15)), "15 transitions were seen when from 16 to 16"),
        (lambda entries, _: entries.append(look(0.6, 20, 1)), "1 transitions were seen when from 0 to 0"),
        (
            lambda entries, _: entries.append(steps(entries)[0]._replace(outcome=ERROR, code="NOT_FOUND", reply=None)),
            "refused with NOT_FOUND",
        ),
        (
            lambda entries, _: entries.append(steps(entries)[0]._replace(expected="ALREADY_EXISTS")),
            "should have been ALREADY_EXISTS",
        ),
        (change_a_dual_variable, "another dual variable"),
        (miscount_in_the_status, "constraint_regret of cost-0"),
        (miscount_in_a_gauge, "the gauge observed_transitions"),
        (lambda _, view: setattr(view.verified, "state_digest", "e"), "what is stored is not what is served"),
    ],
)
def test_every_violation_is_found(doctor: Doctored, finding: str) -> None:
    assert any(finding in found for found in verdict_after(doctor).findings), verdict_after(doctor).findings


def test_losses_and_repetitions_are_counted() -> None:
    assert verdict_after(lambda _, view: count(view, -1)).lost == 1
    assert verdict_after(lambda _, view: count(view, 1)).duplicated == 1


def test_an_agent_that_is_gone_is_found() -> None:
    entries, _ = honest()
    assert judge(entries, {}).findings == [f"{AGENT}: the service does not tell of it any more"]


def test_a_call_that_was_made_again_may_be_a_repetition() -> None:
    """If the outcome of the first attempt is unknown."""
    entries, view = honest()
    again = steps(entries)[3]
    again.reply.duplicate = True
    entries.append(again._replace(begin=again.begin - 0.1, end=again.begin, outcome=UNKNOWN, code="UNAVAILABLE", reply=None))
    verdict = judge(sorted(entries, key=lambda found: found.end), {AGENT: replace(view)})
    assert (verdict.findings, verdict.unknown, verdict.repeated) == ([], 1, 1)


def test_recovery_is_counted_from_the_first_call_that_began_after_the_fault() -> None:
    entries, _ = honest()
    assert first_acknowledged(entries, [AGENT], 3.9) == pytest.approx(0.6)
