"""StartEpisode, GetAction and EndEpisode over a socket, line by line of their contract."""

import pytest

from safe_psrl_proto.v1 import events_pb2
from tests.safe_psrl_server.specs import HORIZON, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal

COMPLETED, TRUNCATED, ABANDONED = (
    events_pb2.EPISODE_END_COMPLETED,
    events_pb2.EPISODE_END_TRUNCATED,
    events_pb2.EPISODE_END_ABANDONED,
)


# --- StartEpisode


def test_an_episode_starts_with_an_action_and_its_plan(wire: Wire, agent: str) -> None:
    """The action is the policy's at step 0; the policy comes if it was asked for; predictions and duals per constraint."""
    reply = wire.start(agent, 1, with_policy=True)
    assert (reply.episode, reply.horizon) == (1, HORIZON)
    assert (reply.policy.horizon, reply.policy.num_states, len(reply.policy.actions)) == (HORIZON, 4, 12)
    assert reply.action == reply.policy.actions[1]
    assert len(reply.predicted_costs) == len(reply.dual_variables) == 2
    assert reply.predicted_reward > 0


def test_an_episode_that_starts_without_state_or_policy_has_neither(wire: Wire, agent: str) -> None:
    reply = wire.start(agent, None)
    assert not reply.HasField("action")
    assert not reply.HasField("policy")


def test_a_repeated_start_is_the_same_episode(wire: Wire, agent: str) -> None:
    """The same request_id gives the same reply, before, during and after the episode, and writes nothing."""
    first = wire.start(agent, 0, request_id="k", with_policy=True)
    with wire.unchanged(agent):
        assert wire.start(agent, 0, request_id="k", with_policy=True) == first
    wire.report_episode(agent, 1, *[transition(0, 0, 0)] * HORIZON)
    assert wire.start(agent, 0, request_id="k", with_policy=True) == first
    assert wire.start(agent, 0, request_id="l").episode == 2


@pytest.mark.parametrize("state", [1, None])
def test_a_request_id_for_something_else_is_refused(wire: Wire, agent: str, state: int | None) -> None:
    wire.start(agent, 0, request_id="k")
    with wire.unchanged(agent):
        refused = refusal(lambda: wire.start(agent, state, request_id="k"), Code.ALREADY_EXISTS, "REQUEST_ID_USED")
    assert refused.metadata["episode"] == "1"


def test_a_request_id_may_be_128_bytes(wire: Wire, agent: str) -> None:
    assert wire.start(agent, 0, request_id="é" * 64).episode == 1
    refusal(lambda: wire.start(agent, 0, request_id="x" * 129), Code.INVALID_ARGUMENT, field="request_id")


def test_an_open_episode_stands_in_the_way(wire: Wire, agent: str) -> None:
    """The refusal has its number and step, so that a client can go on with it."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    with wire.unchanged(agent):
        refused = refusal(lambda: wire.start(agent), Code.FAILED_PRECONDITION, "EPISODE_OPEN")
    assert refused.metadata == {"open_episode": "1", "expected_step": "1"}


def test_an_open_episode_can_be_abandoned(wire: Wire, agent: str) -> None:
    """What it reported stays learned, and it does not count as completed."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    assert wire.start(agent, 0, abandon_open=True).episode == 2
    status = wire.status(agent)
    assert list(status.open_episodes) == [2]
    assert (status.transitions, status.completed_episodes) == (1, 0)
    assert wire.end(agent, 1).end == ABANDONED


@pytest.mark.parametrize("state", [2, -1, 4, 2**62])
def test_an_episode_begins_where_episodes_begin(wire: Wire, agent: str, state: int) -> None:
    """Not in a state of no initial probability, nor in one that does not exist; by GetAction neither."""
    reason = "NOT_AN_INITIAL_STATE" if state == 2 else "INVALID_ARGUMENT"
    with wire.unchanged(agent):
        refusal(lambda: wire.start(agent, state), Code.INVALID_ARGUMENT, reason, "state")
        refusal(lambda: wire.act(agent, state), Code.INVALID_ARGUMENT, reason, "state")


def test_an_unknown_agent_is_not_found(wire: Wire) -> None:
    """By every call of the data plane, and no call brings it into being."""
    for call in (
        lambda: wire.start("nobody"),
        lambda: wire.act("nobody", 0),
        lambda: wire.report("nobody", transition(0, 0, 0)),
        lambda: wire.step("nobody", transition(0, 0, 0)),
        lambda: wire.report_episode("nobody", 1),
        lambda: wire.end("nobody", 1),
        lambda: wire.act("", 0),
        lambda: wire.status("nobody"),
    ):
        refusal(call, Code.NOT_FOUND, "AGENT_NOT_FOUND")


# --- GetAction


def test_a_bare_client_needs_two_calls_only(wire: Wire, agent: str) -> None:
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


def test_asking_again_gives_the_same_action_and_writes_nothing(wire: Wire, agent: str) -> None:
    """Bare or with (episode, step); an earlier step too, as a retry does that was overtaken by its report."""
    policy = wire.start(agent, 0, with_policy=True).policy
    with wire.unchanged(agent):
        for state in (0, 1, 0):
            assert wire.act(agent, state).action == policy.actions[state]
            assert wire.act(agent, state, episode=1, step=0).action == policy.actions[state]
    wire.report(agent, transition(0, 1, 3))
    assert wire.act(agent, 0, episode=1, step=0).action == policy.actions[0]
    assert wire.act(agent, 3, episode=1, step=1).action == policy.actions[4 + 3]
    assert wire.act(agent, 3).step == 1


@pytest.mark.parametrize("step", [1, 2])
def test_asking_ahead_is_out_of_range(wire: Wire, agent: str, step: int) -> None:
    wire.start(agent)
    refused = refusal(lambda: wire.act(agent, 0, episode=1, step=step), Code.OUT_OF_RANGE, "STEP_GAP")
    assert refused.metadata == {"expected_step": "0", "episode": "1"}


@pytest.mark.parametrize("step", [-1, HORIZON, 2**62])
def test_a_step_outside_the_horizon_is_invalid(wire: Wire, agent: str, step: int) -> None:
    wire.start(agent)
    for call in (
        lambda: wire.act(agent, 0, episode=1, step=step),
        lambda: wire.act(agent, 0, step=step),
        lambda: wire.report(agent, transition(0, 0, 0), step=step),
        lambda: wire.step(agent, transition(0, 0, 0), episode=1, step=step),
    ):
        refusal(call, Code.INVALID_ARGUMENT, field="step")


def test_a_bare_client_cannot_begin_elsewhere(wire: Wire, agent: str) -> None:
    with wire.unchanged(agent):
        refusal(lambda: wire.act(agent, 0, step=1), Code.FAILED_PRECONDITION, "NO_EPISODE")
    wire.start(agent)
    refusal(lambda: wire.act(agent, 2), reason="NOT_AN_INITIAL_STATE")


def test_closed_and_unknown_episodes_do_not_act(wire: Wire, agent: str) -> None:
    """Nor does asking for one begin another."""
    wire.start(agent)
    wire.end(agent, 1)
    with wire.unchanged(agent):
        refused = refusal(lambda: wire.act(agent, 0, episode=1), Code.FAILED_PRECONDITION, "EPISODE_CLOSED")
        for episode in (0, 2, -1, 2**62):
            refusal(lambda episode=episode: wire.act(agent, 0, episode=episode), Code.NOT_FOUND, "EPISODE_NOT_FOUND")
    assert refused.metadata["end"] == "truncated"


# --- EndEpisode


@pytest.mark.parametrize(("asked", "told"), [(0, TRUNCATED), (TRUNCATED, TRUNCATED), (ABANDONED, ABANDONED)])
def test_an_episode_can_be_broken_off(wire: Wire, agent: str, asked: int, told: int) -> None:
    """What was reported stays; it does not count as completed; asking again, in whatever way, gives what came of it."""
    wire.start(agent)
    wire.report(agent, transition(0, 1, 0))
    reply = wire.end(agent, 1, asked)
    assert (reply.end, reply.steps) == (told, 1)
    with wire.unchanged(agent):
        for again in (0, TRUNCATED, ABANDONED):
            assert wire.end(agent, 1, again) == reply
    status = wire.status(agent)
    assert (status.transitions, status.completed_episodes, list(status.open_episodes)) == (1, 0, [])
    assert wire.start(agent).episode == 2


def test_no_client_can_declare_an_episode_completed(wire: Wire, agent: str) -> None:
    """Ending one that is gives that it was."""
    wire.start(agent)
    for end in (COMPLETED, 77):
        refusal(lambda end=end: wire.end(agent, 1, end), Code.INVALID_ARGUMENT, field="end")
    wire.report(agent, transition(0, 1, 0, terminal=True))
    assert wire.end(agent, 1).end == COMPLETED


def test_episodes_that_are_long_over_are_closed(wire: Wire, agent: str) -> None:
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
        refusal(call, Code.FAILED_PRECONDITION, "EPISODE_CLOSED")
    refusal(lambda: wire.end(agent, 4), Code.NOT_FOUND)
