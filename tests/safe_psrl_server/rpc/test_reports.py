"""ReportTransition, Step and ReportEpisode over a socket, line by line of their contract."""

import math
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2
from tests.safe_psrl_server.specs import HORIZON, make_spec, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal, without_incarnation

PATH = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
MOVED: dict[str, Any] = {"state": 0, "action": 1, "next_state": 0, "reward": 0.5, "costs": [0.5, 0.25]}


# --- one transition


@pytest.mark.parametrize(
    ("field", "other"),
    [("state", 1), ("action", 0), ("next_state", 2), ("reward", 0.5000001), ("costs", [0.5, 0.0]), ("terminal", True)],
)
def test_another_transition_for_the_same_step_is_refused(wire: Wire, agent: str, field: str, other: Any) -> None:
    """Whatever field differs, by ReportTransition and by Step, open or closed; nothing is applied."""
    wire.start(agent)
    wire.report(agent, transition(**MOVED), episode=1, step=0)
    wire.report(agent, transition(0, 1, 0), episode=1, step=1)
    changed = transition(**{**MOVED, field: other})
    for _ in ("open", "closed"):
        with wire.unchanged(agent):
            for call in (wire.report, wire.step):
                refused = refusal(
                    lambda call=call: call(agent, changed, episode=1, step=0), Code.ALREADY_EXISTS, "TRANSITION_CONFLICT"
                )
                assert (refused.metadata["episode"], refused.metadata["step"]) == ("1", "0")
        wire.end(agent, 1)


@pytest.mark.parametrize(
    ("wrong", "field", "reason"),
    [
        ({"reward": math.nan}, "reward", ""),
        ({"reward": math.inf}, "reward", ""),
        ({"reward": -math.inf}, "reward", ""),
        ({"reward": -0.1}, "reward", ""),
        ({"reward": 1.1}, "reward", ""),
        ({"costs": [0.1, math.nan]}, "costs[1]", ""),
        ({"costs": [-0.1, 0.1]}, "costs[0]", ""),
        ({"costs": [0.1, 1.1]}, "costs[1]", ""),
        ({"costs": [math.inf, 0.1]}, "costs[0]", ""),
        ({"costs": [0.1]}, "costs", ""),
        ({"costs": [0.1] * 3}, "costs", ""),
        ({"state": 2**62}, "state", ""),
        ({"state": -1}, "state", ""),
        ({"state": 4}, "state", ""),
        ({"state": 2}, "state", "NOT_AN_INITIAL_STATE"),
        ({"action": 2**62}, "action", ""),
        ({"action": -1}, "action", ""),
        ({"action": 3}, "action", ""),
        ({"action": 2}, "action", "ACTION_UNAVAILABLE"),
        ({"next_state": 2**62}, "next_state", ""),
        ({"next_state": -(2**62)}, "next_state", ""),
        ({"next_state": 4}, "next_state", ""),
        ({"state": 1, "action": 1, "next_state": 3}, "next_state", "OUTSIDE_SUPPORT"),
    ],
    ids=str,
)
def test_a_malformed_transition_is_refused(wire: Wire, agent: str, wrong: dict[str, Any], field: str, reason: str) -> None:
    """INVALID_ARGUMENT with the path of the field, by all three calls that report; nothing is applied."""
    moved = transition(**wrong)
    wire.start(agent)
    with wire.unchanged(agent):
        for call, path in (
            (lambda: wire.report(agent, moved), f"transition.{field}"),
            (lambda: wire.step(agent, moved, episode=1, step=0), f"transition.{field}"),
            (lambda: wire.report_episode(agent, 1, moved), f"transitions[0].{field}"),
        ):
            refused = refusal(call, Code.INVALID_ARGUMENT, reason or "INVALID_ARGUMENT", path)
            assert refused.message.startswith(f"{path}: ")


def test_a_report_without_a_transition_is_refused(wire: Wire, agent: str) -> None:
    """A message that was left out is not taken for a step from state 0 to state 0."""
    wire.start(agent)
    with wire.unchanged(agent):
        for call in (
            lambda: wire.control.ReportTransition(control_pb2.ReportTransitionRequest(agent=agent)),
            lambda: wire.control.Step(control_pb2.StepRequest(agent=agent, episode=1, step=0)),
        ):
            refusal(call, Code.INVALID_ARGUMENT, field="transition")


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_signals_may_be_0_and_1(wire: Wire, agent: str, edge: float) -> None:
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0, reward=edge, costs=[edge, edge], terminal=True))
    status = wire.status(agent)
    assert status.last_reward == edge
    assert [constraint.last_cost for constraint in status.constraints] == [edge, edge]


def test_a_step_continues_the_one_before(wire: Wire, agent: str) -> None:
    """In the state where that led, and without a gap; the refusal has what was expected."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 3))
    with wire.unchanged(agent):
        jump = refusal(
            lambda: wire.report(agent, transition(2, 1, 0)), Code.INVALID_ARGUMENT, "STATE_MISMATCH", "transition.state"
        )
        assert jump.metadata["expected_state"] == "3"
        for call in (wire.report, wire.step):
            gap = refusal(lambda call=call: call(agent, transition(3, 1, 0), episode=1, step=2), Code.OUT_OF_RANGE)
            assert gap.metadata["expected_step"] == "1"


def test_another_action_than_proposed_is_learned_and_counted(wire: Wire, agent: str) -> None:
    """A supervisor may overrule the agent: the kernel is learned from what was executed."""
    proposed = wire.start(agent, 1).action
    other = next(action for action in range(3) if action not in {proposed, 1})
    wire.report(agent, transition(1, other, 0))
    wire.report(agent, transition(0, wire.act(agent, 0).action, 0))
    status = wire.status(agent)
    assert (status.overridden_actions, status.transitions) == (1, 2)


def test_the_environment_may_end_an_episode_early(wire: Wire, agent: str) -> None:
    """A terminal step completes it: it counts, nothing follows, and another transition in its place is a conflict."""
    wire.start(agent)
    assert wire.report(agent, transition(0, 1, 2, terminal=True), episode=1, step=0).episode_done
    assert wire.status(agent).completed_episodes == 1
    refused = refusal(lambda: wire.report(agent, transition(2, 1, 2), episode=1, step=1), reason="EPISODE_CLOSED")
    assert refused.metadata["end"] == "completed"
    refusal(lambda: wire.report(agent, transition(2, 1, 2)), reason="NO_EPISODE")
    refusal(lambda: wire.report(agent, transition(0, 1, 2), episode=1, step=0), reason="TRANSITION_CONFLICT")


def test_known_signals_are_entered_when_left_out(wire: Wire, agent: str) -> None:
    """The problem's own reward and costs of (state, action); saying the same aloud is a duplicate."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0, terminal=True))
    status = wire.status(agent)
    assert status.last_reward == pytest.approx(1 / 11, abs=0)
    assert [constraint.last_cost for constraint in status.constraints] == [0.5, 0.0]
    spoken = transition(0, 1, 0, reward=status.last_reward, costs=[0.5, 0.0], terminal=True)
    assert wire.report(agent, spoken, episode=1, step=0).duplicate


@pytest.mark.parametrize(("given", "field"), [({"costs": [0.1, 0.2]}, "reward"), ({"reward": 0.5}, "costs")])
def test_learned_signals_must_be_reported(wire: Wire, given: dict[str, Any], field: str) -> None:
    agent = wire.create(make_spec(learned=True))
    wire.start(agent)
    with wire.unchanged(agent):
        refusal(lambda: wire.report(agent, transition(0, 1, 0, **given)), field=f"transition.{field}")
    assert not wire.report(agent, transition(0, 1, 0, reward=0.5, costs=[0.1, 0.2])).duplicate


def test_reporting_needs_an_episode(wire: Wire, agent: str) -> None:
    refusal(lambda: wire.report(agent, transition(0, 1, 0)), Code.FAILED_PRECONDITION, "NO_EPISODE")
    refusal(lambda: wire.report(agent, transition(0, 1, 0), episode=1, step=0), Code.NOT_FOUND, "EPISODE_NOT_FOUND")


@pytest.mark.parametrize("steps", [1, HORIZON], ids=["terminal", "whole"])
@pytest.mark.parametrize("kind", ["report", "step"])
def test_every_step_can_be_repeated(wire: Wire, agent: str, kind: str, steps: int) -> None:
    """The reply is the same but for `duplicate`, and nothing is applied: at once, at the last step, and after the end."""
    policy, call, replies = wire.start(agent, 0, with_policy=True).policy, getattr(wire, kind), []
    path = [transition(**MOVED, terminal=step == steps - 1 < HORIZON - 1) for step in range(steps)]
    for step, moved in enumerate(path):
        first = call(agent, moved, episode=1, step=step)
        assert not first.duplicate
        assert first.episode_done == (step == steps - 1)
        if kind == "step":
            assert first.HasField("action") == (step < steps - 1)
            assert not first.HasField("action") or first.action == policy.actions[(step + 1) * 4]
        replies.append(first)
        with wire.unchanged(agent):
            for earlier in range(step + 1):
                again = call(agent, path[earlier], episode=1, step=earlier)
                assert again.duplicate
                again.duplicate = False
                assert again == replies[earlier] or (kind == "report" and earlier < step)
    assert wire.status(agent).transitions == steps


# --- a whole episode


def test_a_whole_episode_at_once_equals_its_steps(wire: Wire, agent: str) -> None:
    twin = wire.create()
    wire.start(agent)
    reply = wire.report_episode(agent, 1, *PATH)
    assert (reply.duplicates, reply.episode_done) == (0, True)
    wire.start(twin)
    for moved in PATH:
        wire.report(twin, moved)
    assert wire.status(twin).state_digest == wire.status(agent).state_digest


def test_an_episode_in_parts(wire: Wire, agent: str) -> None:
    """What was there already is counted as duplicates, however it was reported; the rest is added."""
    wire.start(agent)
    assert not wire.report_episode(agent, 1, PATH[0]).episode_done
    wire.report(agent, PATH[1])
    reply = wire.report_episode(agent, 1, *PATH)
    assert (reply.duplicates, reply.episode_done) == (2, True)
    with wire.unchanged(agent):
        for given in (PATH, PATH[:1], []):
            reply = wire.report_episode(agent, 1, *given)
            assert (reply.duplicates, reply.episode_done) == (len(given), True)
    assert wire.status(agent).transitions == HORIZON


@pytest.mark.parametrize(
    ("path", "code", "field"),
    [
        ([(0, 1, 0), (0, 1, 0)], Code.ALREADY_EXISTS, None),
        ([(0, 1, 2), (3, 1, 0)], Code.INVALID_ARGUMENT, "transitions[1].state"),
        ([(0, 1, 2), (2, 0, 1), (1, 1, 3)], Code.INVALID_ARGUMENT, "transitions[2].next_state"),
        ([(0, 1, 2), (2, 0, 1), (1, 1, 0), (0, 0, 0)], Code.INVALID_ARGUMENT, "transitions"),
    ],
    ids=["conflict", "discontinuous", "impossible", "too long"],
)
def test_an_episode_is_applied_whole_or_not_at_all(
    wire: Wire, agent: str, path: list[tuple[int, int, int]], code: Code, field: str | None
) -> None:
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    with wire.unchanged(agent):
        refused = refusal(lambda: wire.report_episode(agent, 1, *(transition(*moved) for moved in path)), code)
    assert refused.fields == ([field] if field else [])


def test_nothing_follows_a_terminal_transition(wire: Wire, agent: str) -> None:
    wire.start(agent)
    path = [transition(0, 1, 2, terminal=True), transition(2, 0, 3)]
    refusal(lambda: wire.report_episode(agent, 1, *path), field="transitions[0].terminal")
    assert wire.report_episode(agent, 1, path[0]).episode_done
    refusal(lambda: wire.report_episode(agent, 1, *path), reason="EPISODE_CLOSED")


def test_a_whole_episode_needs_its_episode(wire: Wire, agent: str) -> None:
    """The number is required, and must be one that is or was."""
    wire.start(agent)
    for number in (0, 2):
        refusal(lambda number=number: wire.report_episode(agent, number, transition(0, 1, 0)), Code.NOT_FOUND)
    wire.end(agent, 1)
    refusal(lambda: wire.report_episode(agent, 1, transition(0, 1, 0)), reason="EPISODE_CLOSED")


def test_an_episode_and_the_beginning_of_the_next_in_one_call(wire: Wire, agent: str) -> None:
    """Equals the two calls one after the other: same plan, same digest. Repeated, it gives the same reply."""
    twin = wire.create()
    for name in (agent, twin):
        wire.start(name)
    following = {"state": 1, "with_policy": True, "request_id": "second"}
    reply = wire.report_episode(agent, 1, *PATH, next=control_pb2.StartEpisodeRequest(**following))
    assert (reply.duplicates, reply.episode_done, reply.next.episode) == (0, True, 2)
    wire.report_episode(twin, 1, *PATH)
    apart = wire.start(twin, **following)
    assert wire.status(twin).state_digest == wire.status(agent).state_digest
    again = wire.report_episode(agent, 1, *PATH, next=control_pb2.StartEpisodeRequest(**following))
    assert (again.duplicates, again.next) == (3, reply.next)
    assert without_incarnation(apart) == without_incarnation(reply.next)
    assert wire.status(twin).state_digest == wire.status(agent).state_digest


@pytest.mark.parametrize(
    ("steps", "following", "field"),
    [
        (2, {}, "next"),
        (3, {"agent": "another"}, "next.agent"),
        (3, {"state": 2}, "state"),
        (3, {"request_id": "x" * 129}, "request_id"),
    ],
    ids=["unfinished", "other agent", "other state", "long id"],
)
def test_an_episode_is_not_reported_if_the_next_cannot_begin(
    wire: Wire, agent: str, steps: int, following: dict[str, Any], field: str
) -> None:
    wire.start(agent)
    asked = control_pb2.StartEpisodeRequest(**following)
    with wire.unchanged(agent):
        refusal(lambda: wire.report_episode(agent, 1, *PATH[:steps], next=asked), field=field)
