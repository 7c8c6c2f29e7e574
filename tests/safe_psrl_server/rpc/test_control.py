"""The data plane over a socket, line by line of its contract."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2

HORIZON = 3
COMPLETED, TRUNCATED, ABANDONED = (
    events_pb2.EPISODE_END_COMPLETED,
    events_pb2.EPISODE_END_TRUNCATED,
    events_pb2.EPISODE_END_ABANDONED,
)
Refuse = Callable[[Callable[[], object]], Any]
See = Callable[..., control_pb2.Transition]
Code = grpc.StatusCode


@pytest.fixture
def agent(wire: Any) -> str:
    """A fresh agent."""
    return wire.create()


def unchanged(wire: Any, agent: str, before: admin_pb2.AgentStatus) -> bool:
    """No event was added and nothing was learned."""
    after = wire.status(agent)
    return (after.version, after.state_digest) == (before.version, before.state_digest)


# --- StartEpisode


def test_an_episode_starts_with_an_action_and_its_plan(wire: Any, agent: str) -> None:
    """The action is the policy's at step 0; the policy comes if it was asked for; predictions and duals per constraint."""
    reply = wire.start(agent, 1, with_policy=True)
    assert (reply.episode, reply.horizon) == (1, HORIZON)
    assert (reply.policy.horizon, reply.policy.num_states, len(reply.policy.actions)) == (HORIZON, 4, 12)
    assert reply.action == reply.policy.actions[1]
    assert len(reply.predicted_costs) == len(reply.dual_variables) == 2
    assert reply.predicted_reward > 0


def test_an_episode_starts_without_state_or_policy(wire: Any, agent: str) -> None:
    """Then neither an action nor a policy is in the reply."""
    reply = wire.start(agent, None)
    assert not reply.HasField("action")
    assert not reply.HasField("policy")


def test_a_repeated_start_is_the_same_episode(wire: Any, agent: str, transition: See) -> None:
    """The same request_id gives the same reply, before, during and after the episode, and writes nothing."""
    first = wire.start(agent, 0, request_id="k", with_policy=True)
    before = wire.status(agent)
    assert wire.start(agent, 0, request_id="k", with_policy=True) == first
    assert unchanged(wire, agent, before)
    wire.report_episode(agent, 1, *[transition(0, 0, 0)] * HORIZON)
    assert wire.start(agent, 0, request_id="k", with_policy=True) == first
    assert wire.start(agent, 0, request_id="l").episode == 2


@pytest.mark.parametrize("state", [1, None])
def test_a_request_id_for_something_else_is_refused(wire: Any, agent: str, refusal: Refuse, state: int | None) -> None:
    """ALREADY_EXISTS, naming the episode that it began."""
    wire.start(agent, 0, request_id="k")
    before = wire.status(agent)
    refused = refusal(lambda: wire.start(agent, state, request_id="k"))
    assert (refused.code, refused.reason, refused.metadata["episode"]) == (Code.ALREADY_EXISTS, "REQUEST_ID_USED", "1")
    assert unchanged(wire, agent, before)


def test_a_request_id_may_be_128_bytes(wire: Any, agent: str, refusal: Refuse) -> None:
    """Bytes, not letters; one more is INVALID_ARGUMENT."""
    assert wire.start(agent, 0, request_id="é" * 64).episode == 1
    refused = refusal(lambda: wire.start(agent, 0, request_id="x" * 129))
    assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["request_id"])


def test_an_open_episode_stands_in_the_way(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """FAILED_PRECONDITION with which one it is and where it stands, so that a client can go on with it."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    before = wire.status(agent)
    refused = refusal(lambda: wire.start(agent))
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "EPISODE_OPEN")
    assert refused.metadata == {"open_episode": "1", "expected_step": "1"}
    assert unchanged(wire, agent, before)


def test_an_open_episode_can_be_abandoned(wire: Any, agent: str, transition: See) -> None:
    """What it reported stays learned, and it does not count as completed."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    assert wire.start(agent, 0, abandon_open=True).episode == 2
    status = wire.status(agent)
    assert list(status.open_episodes) == [2]
    assert (status.transitions, status.completed_episodes) == (1, 0)
    assert wire.end(agent, 1).end == ABANDONED


@pytest.mark.parametrize(("state", "reason"), [(2, "NOT_AN_INITIAL_STATE"), (-1, ""), (4, ""), (2**62, "")])
def test_an_episode_begins_where_episodes_begin(wire: Any, agent: str, refusal: Refuse, state: int, reason: str) -> None:
    """Not in a state of no initial probability, nor in one that does not exist."""
    before = wire.status(agent)
    refused = refusal(lambda: wire.start(agent, state))
    assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["state"])
    assert refused.reason == (reason or "INVALID_ARGUMENT")
    assert unchanged(wire, agent, before)


def test_an_unknown_agent_is_not_found(wire: Any, refusal: Refuse, transition: See) -> None:
    """By every call of the data plane, and no call brings it into being."""
    for call in (
        lambda: wire.start("nobody"),
        lambda: wire.act("nobody", 0),
        lambda: wire.report("nobody", transition(0, 0, 0)),
        lambda: wire.step("nobody", transition(0, 0, 0)),
        lambda: wire.report_episode("nobody", 1),
        lambda: wire.end("nobody", 1),
        lambda: wire.act("", 0),
    ):
        refused = refusal(call)
        assert (refused.code, refused.reason) == (Code.NOT_FOUND, "AGENT_NOT_FOUND")
    assert refusal(lambda: wire.status("nobody")).code == Code.NOT_FOUND


# --- GetAction


def test_a_bare_client_needs_two_calls_only(wire: Any, agent: str, transition: See) -> None:
    """GetAction and ReportTransition with agent and state alone play whole episodes, one after the other."""
    for episode in (1, 2):
        state = 0
        for step in range(HORIZON):
            acted = wire.act(agent, state)
            assert (acted.episode, acted.step, acted.fallback) == (episode, step, False)
            reply = wire.report(agent, transition(state, acted.action, 2))
            assert (reply.episode, reply.step, reply.duplicate) == (episode, step, False)
            assert reply.episode_done == (step == HORIZON - 1)
            state = 2
    assert wire.status(agent).completed_episodes == 2


def test_asking_again_gives_the_same_action_and_writes_nothing(wire: Any, agent: str) -> None:
    """Bare or with (episode, step), while an episode is open."""
    policy = wire.start(agent, 0, with_policy=True).policy
    before = wire.status(agent)
    for state in (0, 1, 0):
        assert wire.act(agent, state).action == policy.actions[state]
        assert wire.act(agent, state, episode=1, step=0).action == policy.actions[state]
    assert unchanged(wire, agent, before)


def test_an_earlier_step_may_be_asked_for_again(wire: Any, agent: str, transition: See) -> None:
    """As a retry does that was overtaken by its report."""
    policy = wire.start(agent, 0, with_policy=True).policy
    wire.report(agent, transition(0, 1, 3))
    assert wire.act(agent, 0, episode=1, step=0).action == policy.actions[0]
    assert wire.act(agent, 3, episode=1, step=1).action == policy.actions[4 + 3]
    assert wire.act(agent, 3).step == 1


@pytest.mark.parametrize("step", [1, 2])
def test_asking_ahead_is_out_of_range(wire: Any, agent: str, refusal: Refuse, step: int) -> None:
    """With the step that is expected."""
    wire.start(agent)
    refused = refusal(lambda: wire.act(agent, 0, episode=1, step=step))
    assert (refused.code, refused.reason) == (Code.OUT_OF_RANGE, "STEP_GAP")
    assert refused.metadata == {"expected_step": "0", "episode": "1"}


@pytest.mark.parametrize("step", [-1, HORIZON, 2**62])
def test_a_step_outside_the_horizon_is_invalid(wire: Any, agent: str, refusal: Refuse, transition: See, step: int) -> None:
    """Steps are 0 to H - 1; H is past the end."""
    wire.start(agent)
    for call in (
        lambda: wire.act(agent, 0, episode=1, step=step),
        lambda: wire.act(agent, 0, step=step),
        lambda: wire.report(agent, transition(0, 0, 0), step=step),
        lambda: wire.step(agent, transition(0, 0, 0), episode=1, step=step),
    ):
        refused = refusal(call)
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["step"])


@pytest.mark.parametrize("state", [-1, 4, 2**62])
def test_asking_for_no_state_begins_nothing(wire: Any, agent: str, refusal: Refuse, state: int) -> None:
    """A state that does not exist is refused before an episode is begun for it."""
    before = wire.status(agent)
    assert refusal(lambda: wire.act(agent, state)).fields == ["state"]
    assert unchanged(wire, agent, before)


def test_a_bare_client_cannot_begin_elsewhere(wire: Any, agent: str, refusal: Refuse) -> None:
    """Neither in a state where episodes do not begin, nor at a later step."""
    before = wire.status(agent)
    assert refusal(lambda: wire.act(agent, 2)).reason == "NOT_AN_INITIAL_STATE"
    refused = refusal(lambda: wire.act(agent, 0, step=1))
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "NO_EPISODE")
    assert unchanged(wire, agent, before)
    wire.start(agent)
    assert refusal(lambda: wire.act(agent, 2)).reason == "NOT_AN_INITIAL_STATE"


def test_closed_and_unknown_episodes_do_not_act(wire: Any, agent: str, refusal: Refuse) -> None:
    """FAILED_PRECONDITION for one that was, NOT_FOUND for one that never was; neither begins another."""
    wire.start(agent)
    wire.end(agent, 1)
    before = wire.status(agent)
    refused = refusal(lambda: wire.act(agent, 0, episode=1))
    assert (refused.code, refused.reason, refused.metadata["end"]) == (Code.FAILED_PRECONDITION, "EPISODE_CLOSED", "truncated")
    for episode in (0, 2, -1, 2**62):
        refused = refusal(lambda episode=episode: wire.act(agent, 0, episode=episode))
        assert (refused.code, refused.reason) == (Code.NOT_FOUND, "EPISODE_NOT_FOUND")
    assert unchanged(wire, agent, before)


# --- ReportTransition


def test_a_transition_reported_again_is_a_duplicate(wire: Any, agent: str, transition: See) -> None:
    """`duplicate` is set and nothing is applied, in the middle of the episode and after its end."""
    wire.start(agent)
    for step in range(HORIZON):
        moved = transition(0, 1, 0, reward=0.5, costs=[0.5, 0.25])
        first = wire.report(agent, moved, episode=1, step=step)
        assert not first.duplicate
        before = wire.status(agent)
        again = wire.report(agent, moved, episode=1, step=step)
        assert again.duplicate
        assert (again.episode, again.step, again.episode_done) == (first.episode, first.step, first.episode_done)
        assert unchanged(wire, agent, before)
    assert wire.report(agent, moved, episode=1, step=0).duplicate
    assert wire.status(agent).transitions == HORIZON


@pytest.mark.parametrize(
    "other",
    [
        {"state": 1},
        {"action": 0},
        {"next_state": 2},
        {"reward": 0.5000001},
        {"costs": [0.5, 0.0]},
        {"terminal": True},
    ],
)
def test_another_transition_for_the_same_step_is_refused(
    wire: Any, agent: str, refusal: Refuse, transition: See, other: dict[str, Any]
) -> None:
    """ALREADY_EXISTS whatever field differs, open or closed; nothing is applied."""
    moved = {"state": 0, "action": 1, "next_state": 0, "reward": 0.5, "costs": [0.5, 0.25]}
    wire.start(agent)
    wire.report(agent, transition(**moved), episode=1, step=0)
    wire.report(agent, transition(0, 1, 0), episode=1, step=1)
    for _ in ("open", "closed"):
        before = wire.status(agent)
        refused = refusal(lambda: wire.report(agent, transition(**{**moved, **other}), episode=1, step=0))
        assert (refused.code, refused.reason) == (Code.ALREADY_EXISTS, "TRANSITION_CONFLICT")
        assert (refused.metadata["episode"], refused.metadata["step"]) == ("1", "0")
        assert unchanged(wire, agent, before)
        wire.end(agent, 1)


BAD = [
    ({"reward": math.nan}, "reward", "INVALID_ARGUMENT"),
    ({"reward": math.inf}, "reward", "INVALID_ARGUMENT"),
    ({"reward": -math.inf}, "reward", "INVALID_ARGUMENT"),
    ({"reward": -0.1}, "reward", "INVALID_ARGUMENT"),
    ({"reward": 1.1}, "reward", "INVALID_ARGUMENT"),
    ({"costs": [0.1, math.nan]}, "costs[1]", "INVALID_ARGUMENT"),
    ({"costs": [-0.1, 0.1]}, "costs[0]", "INVALID_ARGUMENT"),
    ({"costs": [0.1, 1.1]}, "costs[1]", "INVALID_ARGUMENT"),
    ({"costs": [math.inf, 0.1]}, "costs[0]", "INVALID_ARGUMENT"),
    ({"costs": [0.1]}, "costs", "INVALID_ARGUMENT"),
    ({"costs": [0.1] * 3}, "costs", "INVALID_ARGUMENT"),
    ({"state": 2**62}, "state", "INVALID_ARGUMENT"),
    ({"state": -1}, "state", "INVALID_ARGUMENT"),
    ({"state": 4}, "state", "INVALID_ARGUMENT"),
    ({"state": 2}, "state", "NOT_AN_INITIAL_STATE"),
    ({"action": 2**62}, "action", "INVALID_ARGUMENT"),
    ({"action": -1}, "action", "INVALID_ARGUMENT"),
    ({"action": 3}, "action", "INVALID_ARGUMENT"),
    ({"action": 2}, "action", "ACTION_UNAVAILABLE"),
    ({"next_state": 2**62}, "next_state", "INVALID_ARGUMENT"),
    ({"next_state": -(2**62)}, "next_state", "INVALID_ARGUMENT"),
    ({"next_state": 4}, "next_state", "INVALID_ARGUMENT"),
    ({"state": 1, "action": 1, "next_state": 3}, "next_state", "OUTSIDE_SUPPORT"),
]


@pytest.mark.parametrize(("wrong", "field", "reason"), BAD)
def test_a_malformed_transition_is_refused(
    wire: Any, agent: str, refusal: Refuse, transition: See, wrong: dict[str, Any], field: str, reason: str
) -> None:
    """INVALID_ARGUMENT with the path of the field, by all three calls that report; nothing is applied."""
    moved = transition(**{"state": 0, "action": 1, "next_state": 0, **wrong})
    wire.start(agent)
    before = wire.status(agent)
    for call, path in (
        (lambda: wire.report(agent, moved), f"transition.{field}"),
        (lambda: wire.step(agent, moved, episode=1, step=0), f"transition.{field}"),
        (lambda: wire.report_episode(agent, 1, moved), f"transitions[0].{field}"),
    ):
        refused = refusal(call)
        assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, reason, [path])
        assert refused.message.startswith(f"{path}: ")
    assert unchanged(wire, agent, before)


def test_a_report_without_a_transition_is_refused(wire: Any, agent: str, refusal: Refuse) -> None:
    """A message that was left out is not taken for a step from state 0 to state 0."""
    wire.start(agent)
    before = wire.status(agent)
    for call in (
        lambda: wire.control.ReportTransition(control_pb2.ReportTransitionRequest(agent=agent)),
        lambda: wire.control.Step(control_pb2.StepRequest(agent=agent, episode=1, step=0)),
    ):
        refused = refusal(call)
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["transition"])
    assert unchanged(wire, agent, before)


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_signals_may_be_0_and_1(wire: Any, agent: str, transition: See, edge: float) -> None:
    """The range is closed."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0, reward=edge, costs=[edge, edge], terminal=True))
    status = wire.status(agent)
    assert status.last_reward == edge
    assert [constraint.last_cost for constraint in status.constraints] == [edge, edge]


def test_a_step_begins_where_the_one_before_led(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """INVALID_ARGUMENT with the state that was expected."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 3))
    before = wire.status(agent)
    refused = refusal(lambda: wire.report(agent, transition(2, 1, 0)))
    assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, "STATE_MISMATCH", ["transition.state"])
    assert refused.metadata["expected_state"] == "3"
    assert unchanged(wire, agent, before)


def test_a_step_too_early_is_out_of_range(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """A gap in the steps comes back with the step that is expected."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0))
    before = wire.status(agent)
    refused = refusal(lambda: wire.report(agent, transition(0, 1, 0), episode=1, step=2))
    assert (refused.code, refused.metadata["expected_step"]) == (Code.OUT_OF_RANGE, "1")
    assert unchanged(wire, agent, before)


def test_another_action_than_proposed_is_learned_and_counted(wire: Any, agent: str, transition: See) -> None:
    """A supervisor may overrule the agent: the kernel is learned from what was executed."""
    proposed = wire.start(agent, 1).action
    other = next(action for action in range(3) if action not in {proposed, 1})
    wire.report(agent, transition(1, other, 0))
    wire.report(agent, transition(0, wire.act(agent, 0).action, 0))
    status = wire.status(agent)
    assert (status.overridden_actions, status.transitions) == (1, 2)


def test_the_environment_may_end_an_episode_early(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """A terminal step completes it: it counts, nothing follows, and repeating it is a duplicate."""
    wire.start(agent)
    moved = transition(0, 1, 2, terminal=True)
    assert wire.report(agent, moved, episode=1, step=0).episode_done
    assert wire.report(agent, moved, episode=1, step=0).duplicate
    assert wire.status(agent).completed_episodes == 1
    refused = refusal(lambda: wire.report(agent, transition(2, 1, 2), episode=1, step=1))
    assert (refused.reason, refused.metadata["end"]) == ("EPISODE_CLOSED", "completed")
    assert refusal(lambda: wire.report(agent, transition(2, 1, 2))).reason == "NO_EPISODE"
    conflict = refusal(lambda: wire.report(agent, transition(0, 1, 2), episode=1, step=0))
    assert conflict.reason == "TRANSITION_CONFLICT"


def test_known_signals_are_entered_when_left_out(wire: Any, agent: str, transition: See) -> None:
    """The problem's own reward and costs of (state, action); saying the same aloud is a duplicate."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0, terminal=True))
    status = wire.status(agent)
    assert status.last_reward == pytest.approx(1 / 11, abs=0)
    assert [constraint.last_cost for constraint in status.constraints] == [0.5, 0.0]
    spoken = transition(0, 1, 0, reward=status.last_reward, costs=[0.5, 0.0], terminal=True)
    assert wire.report(agent, spoken, episode=1, step=0).duplicate


@pytest.mark.parametrize(("given", "field"), [({"costs": [0.1, 0.2]}, "reward"), ({"reward": 0.5}, "costs")])
def test_learned_signals_must_be_reported(
    wire: Any, make_spec: Callable[..., Any], refusal: Refuse, transition: See, given: dict[str, Any], field: str
) -> None:
    """An agent that learns its reward or costs cannot fill them in."""
    agent = wire.create(make_spec(learned=True))
    wire.start(agent)
    before = wire.status(agent)
    refused = refusal(lambda: wire.report(agent, transition(0, 1, 0, **given)))
    assert refused.fields == [f"transition.{field}"]
    assert unchanged(wire, agent, before)
    assert not wire.report(agent, transition(0, 1, 0, reward=0.5, costs=[0.1, 0.2])).duplicate


def test_reporting_needs_an_episode(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """None is begun by a report."""
    refused = refusal(lambda: wire.report(agent, transition(0, 1, 0)))
    assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "NO_EPISODE")
    refused = refusal(lambda: wire.report(agent, transition(0, 1, 0), episode=1, step=0))
    assert (refused.code, refused.reason) == (Code.NOT_FOUND, "EPISODE_NOT_FOUND")


# --- Step


def test_every_step_can_be_repeated(wire: Any, agent: str, transition: See) -> None:
    """The reply is the same but for `duplicate`: at once, at every step including the last, and after the end."""
    policy = wire.start(agent, 0, with_policy=True).policy
    replies = []
    for step in range(HORIZON):
        moved = transition(0, 1, 0)
        first = wire.step(agent, moved, episode=1, step=step)
        again = wire.step(agent, moved, episode=1, step=step)
        assert (first.duplicate, again.duplicate) == (False, True)
        again.duplicate = False
        assert again == first
        assert first.HasField("action") == (step < HORIZON - 1)
        if step < HORIZON - 1:
            assert first.action == policy.actions[(step + 1) * 4]
        replies.append(first)
    assert [reply.episode_done for reply in replies] == [False, False, True]
    for step, first in enumerate(replies):
        again = wire.step(agent, transition(0, 1, 0), episode=1, step=step)
        again.duplicate = False
        assert again == first
    assert wire.status(agent).transitions == HORIZON


def test_a_terminal_step_can_be_repeated(wire: Any, agent: str, transition: See) -> None:
    """It is done, then and later."""
    wire.start(agent)
    moved = transition(0, 1, 0, terminal=True)
    first = wire.step(agent, moved, episode=1, step=0)
    assert first.episode_done
    assert not first.HasField("action")
    again = wire.step(agent, moved, episode=1, step=0)
    assert again.duplicate
    again.duplicate = False
    assert again == first


def test_a_conflicting_step_is_refused(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """As ReportTransition refuses it."""
    wire.start(agent)
    wire.step(agent, transition(0, 1, 0), episode=1, step=0)
    assert refusal(lambda: wire.step(agent, transition(0, 1, 2), episode=1, step=0)).code == Code.ALREADY_EXISTS
    assert refusal(lambda: wire.step(agent, transition(0, 1, 2), episode=1, step=2)).metadata["expected_step"] == "1"


# --- ReportEpisode


def test_a_whole_episode_at_once(wire: Any, agent: str, transition: See) -> None:
    """Equals reporting step by step: same digest."""
    twin = wire.create()
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    wire.start(agent)
    reply = wire.report_episode(agent, 1, *path)
    assert (reply.duplicates, reply.episode_done) == (0, True)
    wire.start(twin)
    for moved in path:
        wire.report(twin, moved)
    assert wire.status(twin).state_digest == wire.status(agent).state_digest


def test_an_episode_in_parts(wire: Any, agent: str, transition: See) -> None:
    """What was there already is counted as duplicates, however it was reported; the rest is added."""
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    wire.start(agent)
    assert not wire.report_episode(agent, 1, path[0]).episode_done
    wire.report(agent, path[1])
    reply = wire.report_episode(agent, 1, *path)
    assert (reply.duplicates, reply.episode_done) == (2, True)
    before = wire.status(agent)
    for given, duplicates in ((path, 3), (path[:1], 1), ([], 0)):
        reply = wire.report_episode(agent, 1, *given)
        assert (reply.duplicates, reply.episode_done) == (duplicates, True)
    assert unchanged(wire, agent, before)
    assert before.transitions == HORIZON


@pytest.mark.parametrize(
    ("path", "code", "field"),
    [
        ([(0, 1, 0), (0, 1, 0)], Code.ALREADY_EXISTS, None),
        ([(0, 1, 2), (3, 1, 0)], Code.INVALID_ARGUMENT, "transitions[1].state"),
        ([(0, 1, 2), (2, 0, 1), (1, 1, 3)], Code.INVALID_ARGUMENT, "transitions[2].next_state"),
        ([(0, 1, 2), (2, 0, 1), (1, 1, 0), (0, 0, 0)], Code.INVALID_ARGUMENT, "transitions"),
    ],
)
def test_an_episode_is_applied_whole_or_not_at_all(
    wire: Any, agent: str, refusal: Refuse, transition: See, path: list[tuple[int, int, int]], code: Code, field: str | None
) -> None:
    """One bad transition, a conflict or one too many: none of it is learned."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    before = wire.status(agent)
    refused = refusal(lambda: wire.report_episode(agent, 1, *(transition(*moved) for moved in path)))
    assert refused.code == code
    assert refused.fields == ([field] if field else [])
    assert unchanged(wire, agent, before)


def test_nothing_follows_a_terminal_transition(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """In a trajectory only the last may be terminal."""
    wire.start(agent)
    path = [transition(0, 1, 2, terminal=True), transition(2, 0, 3)]
    assert refusal(lambda: wire.report_episode(agent, 1, *path)).fields == ["transitions[0].terminal"]
    assert wire.report_episode(agent, 1, path[0]).episode_done
    assert refusal(lambda: wire.report_episode(agent, 1, *path)).reason == "EPISODE_CLOSED"


def test_a_whole_episode_needs_its_episode(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """The number is required, and must be one that is or was."""
    wire.start(agent)
    assert refusal(lambda: wire.report_episode(agent, 0, transition(0, 1, 0))).code == Code.NOT_FOUND
    assert refusal(lambda: wire.report_episode(agent, 2, transition(0, 1, 0))).code == Code.NOT_FOUND
    wire.end(agent, 1)
    assert refusal(lambda: wire.report_episode(agent, 1, transition(0, 1, 0))).reason == "EPISODE_CLOSED"


def test_an_episode_and_the_beginning_of_the_next_in_one_call(wire: Any, agent: str, transition: See) -> None:
    """Equals the two calls one after the other: same plan, same digest. Repeated, it gives the same reply."""
    twin = wire.create()
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    for name in (agent, twin):
        wire.start(name)
    following = {"state": 1, "with_policy": True, "request_id": "second"}
    reply = wire.report_episode(agent, 1, *path, next=control_pb2.StartEpisodeRequest(**following))
    assert (reply.duplicates, reply.episode_done, reply.next.episode) == (0, True, 2)
    wire.report_episode(twin, 1, *path)
    assert wire.start(twin, **following) == reply.next
    assert wire.status(twin).state_digest == wire.status(agent).state_digest
    again = wire.report_episode(agent, 1, *path, next=control_pb2.StartEpisodeRequest(**following))
    assert (again.duplicates, again.next) == (3, reply.next)
    assert wire.status(twin).state_digest == wire.status(agent).state_digest


@pytest.mark.parametrize(
    ("steps", "following", "field"),
    [
        (2, {}, ["next"]),
        (3, {"agent": "another"}, ["next.agent"]),
        (3, {"state": 2}, ["state"]),
        (3, {"request_id": "x" * 129}, ["request_id"]),
    ],
)
def test_an_episode_is_not_reported_if_the_next_cannot_begin(
    wire: Any, agent: str, refusal: Refuse, transition: See, steps: int, following: dict[str, Any], field: list[str]
) -> None:
    """Both, or none."""
    wire.start(agent)
    before = wire.status(agent)
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)][:steps]
    asked = control_pb2.StartEpisodeRequest(**following)
    assert refusal(lambda: wire.report_episode(agent, 1, *path, next=asked)).fields == field
    assert unchanged(wire, agent, before)


# --- EndEpisode


@pytest.mark.parametrize(("asked", "told"), [(0, TRUNCATED), (TRUNCATED, TRUNCATED), (ABANDONED, ABANDONED)])
def test_an_episode_can_be_broken_off(wire: Any, agent: str, transition: See, asked: int, told: int) -> None:
    """What was reported stays; it does not count as completed; asking again, in whatever way, gives what came of it."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0))
    reply = wire.end(agent, 1, asked)
    assert (reply.end, reply.steps) == (told, 1)
    before = wire.status(agent)
    for again in (0, TRUNCATED, ABANDONED):
        assert wire.end(agent, 1, again) == reply
    assert unchanged(wire, agent, before)
    assert (before.transitions, before.completed_episodes, list(before.open_episodes)) == (1, 0, [])
    assert wire.start(agent).episode == 2


def test_ending_a_completed_episode_tells_that_it_was(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """And nobody can declare one completed."""
    wire.start(agent)
    refused = refusal(lambda: wire.end(agent, 1, COMPLETED))
    assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["end"])
    assert refusal(lambda: wire.end(agent, 1, 77)).fields == ["end"]
    wire.report(agent, transition(0, 1, 0, terminal=True))
    assert wire.end(agent, 1).end == COMPLETED


def test_episodes_that_are_long_over_are_closed(wire: Any, agent: str, refusal: Refuse, transition: See) -> None:
    """Their details are forgotten, but they are not mistaken for unknown ones."""
    for episode in (1, 2, 3):
        wire.start(agent)
        wire.report(agent, transition(0, 1, 0, terminal=True), episode=episode, step=0)
    for call in (
        lambda: wire.end(agent, 1),
        lambda: wire.act(agent, 0, episode=1),
        lambda: wire.report(agent, transition(0, 1, 0), episode=1, step=0),
        lambda: wire.report_episode(agent, 1, transition(0, 1, 0)),
    ):
        refused = refusal(call)
        assert (refused.code, refused.reason) == (Code.FAILED_PRECONDITION, "EPISODE_CLOSED")
    assert refusal(lambda: wire.end(agent, 4)).code == Code.NOT_FOUND


# --- StepStream


def test_a_stream_answers_in_order_and_outlives_errors(wire: Any, agent: str, transition: See) -> None:
    """Each message has its own status; a bad one changes nothing and ends nothing."""

    def requests() -> Iterator[control_pb2.StepStreamRequest]:
        def step(tag: int, step: int, *moved: int) -> control_pb2.StepStreamRequest:
            call = control_pb2.StepRequest(agent=agent, episode=1, step=step, transition=transition(*moved))
            return control_pb2.StepStreamRequest(tag=tag, step=call)

        start = control_pb2.StartEpisodeRequest(agent=agent, state=0, request_id="s")
        yield control_pb2.StepStreamRequest(tag=10, start_episode=start)
        yield step(11, 0, 0, 1, 0)
        yield step(12, 2, 0, 1, 0)
        yield step(13, 0, 0, 1, 2)
        yield control_pb2.StepStreamRequest(tag=-14)
        yield step(15, 1, 0, 9, 0)
        yield step(16, 1, 0, 1, 0)
        yield step(17, 1, 0, 1, 0)
        yield step(18, 2, 0, 1, 0)

    replies = list(wire.control.StepStream(requests()))
    assert [reply.tag for reply in replies] == [10, 11, 12, 13, -14, 15, 16, 17, 18]
    kinds = ["start_episode", "step", "error", "error", "error", "error", "step", "step", "step"]
    assert [reply.WhichOneof("outcome") for reply in replies] == kinds
    gap, conflict, empty, bad = (reply.error for reply in replies if reply.HasField("error"))
    assert (gap.code, gap.reason, dict(gap.metadata)) == (11, "STEP_GAP", {"expected_step": "1", "episode": "1"})
    assert (conflict.code, conflict.reason) == (6, "TRANSITION_CONFLICT")
    assert (empty.code, empty.metadata["field"]) == (3, "call")
    assert (bad.code, bad.metadata["field"]) == (3, "transition.action")
    assert [reply.step.duplicate for reply in replies[6:]] == [False, True, False]
    assert replies[-1].step.episode_done
    assert wire.status(agent).transitions == HORIZON


def test_a_stream_serves_several_agents(wire: Any, transition: See) -> None:
    """Interleaved, pipelined without waiting, each agent in its own order; the result is that of single calls."""
    agents = [wire.create() for _ in range(5)]
    alone = wire.create()
    episodes = 6

    def requests() -> Iterator[control_pb2.StepStreamRequest]:
        for episode in range(1, episodes + 1):
            for agent in agents:
                start = control_pb2.StartEpisodeRequest(agent=agent, state=0)
                yield control_pb2.StepStreamRequest(tag=episode, start_episode=start)
            for step in range(HORIZON):
                for agent in agents:
                    call = control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=transition(0, 1, 0))
                    yield control_pb2.StepStreamRequest(tag=episode, step=call)

    replies = list(wire.control.StepStream(requests()))
    assert not [reply for reply in replies if reply.HasField("error")]
    assert [reply.tag for reply in replies] == sorted(reply.tag for reply in replies)
    for _ in range(episodes):
        episode = wire.start(alone).episode
        wire.report_episode(alone, episode, *[transition(0, 1, 0)] * HORIZON)
    assert {wire.status(agent).state_digest for agent in agents} == {wire.status(alone).state_digest}


def test_a_stream_that_its_client_drops_leaves_the_agent_usable(wire: Any, agent: str, transition: See) -> None:
    """What was sent and answered is kept; the agent goes on over another call."""
    wire.start(agent)

    def requests() -> Iterator[control_pb2.StepStreamRequest]:
        while True:
            call = control_pb2.StepRequest(agent=agent, episode=1, step=0, transition=transition(0, 1, 0))
            yield control_pb2.StepStreamRequest(tag=1, step=call)

    stream = wire.control.StepStream(requests())
    assert next(stream).step.step == 0
    stream.cancel()
    assert wire.step(agent, transition(0, 1, 0), episode=1, step=1).episode == 1
    assert wire.status(agent).transitions == 2
