"""Policies of continuing tasks that clients play by themselves: the server's actions, reports in parts, epochs in between."""

from pathlib import Path
from typing import Any

import pytest

from safe_psrl import preset, warm_up_continuing
from safe_psrl_client.agent import drawn_action
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import TabularEnvironment
from safe_psrl_testbed.kernels import KERNELS
from tests.safe_psrl_server.agents.test_continuing_agents import agent_spec, moved
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal


@pytest.fixture(scope="module", autouse=True)
def compiled_epochs() -> None:
    warm_up_continuing()


class Player:
    """Plays the continuing buffer by itself, and reports parts of at most `part` steps."""

    def __init__(self, wire: Wire, name: str, part: int = 10_000) -> None:
        self.wire, self.name, self.part, self.steps, self.reports = wire, name, part, 0, 0
        self.environment = TabularEnvironment(preset("continuing-buffer"), KERNELS["continuing-buffer"]())
        self.state = self.environment.reset(seed=5)
        self.place: Any = wire.start(name, self.state, with_policy=True)

    def turn(self) -> tuple[control_pb2.ReportEpisodeRequest, control_pb2.ReportEpisodeResponse]:
        """Play the policy for as long as it is valid, and report; the call and its reply."""
        place, seen = self.place, []
        for draw in place.draws[: self.part]:
            action = drawn_action(place.policy, self.state, draw)
            outcome = self.environment.step(action)
            seen.append(moved(self.state, action, outcome))
            self.state = outcome.next_state
        request = control_pb2.ReportEpisodeRequest(
            agent=self.name,
            episode=place.episode,
            first_step=place.step,
            transitions=seen,
            next=control_pb2.StartEpisodeRequest(with_policy=True),
        )
        reply = self.wire.control.ReportEpisode(request)
        self.steps, self.reports = self.steps + len(seen), self.reports + 1
        self.place = reply.next
        return request, reply


def local(wire: Wire, **more: Any) -> str:
    return wire.create(agent_spec(preset("continuing-buffer"), **more))


def test_draws_are_those_of_the_server(wire: Wire) -> None:
    """In every state, at every step for which the policy is valid."""
    name = local(wire)
    player = Player(wire, name)
    while player.steps < 60:
        player.turn()
    place = player.place
    assert len(place.draws) == 40
    assert len(place.policy.probabilities) == 20
    for step, draw in enumerate(place.draws[:1]):
        for state in range(10):
            request = control_pb2.GetActionRequest(agent=name, state=state, episode=place.episode, step=step)
            assert drawn_action(place.policy, state, draw) == wire.control.GetAction(request).action
    player.turn()
    assert wire.status(name).overridden_actions == 0


def test_parts_of_one_step_are_steps(wire: Wire) -> None:
    """The same epochs as by `Step`, to the bit."""
    name, other = local(wire), local(wire)
    player = Player(wire, name, part=1)
    environment = TabularEnvironment(preset("continuing-buffer"), KERNELS["continuing-buffer"]())
    state = environment.reset(seed=5)
    reply: Any = wire.start(other, state)
    for _ in range(150):
        outcome = environment.step(reply.action)
        reply, state = wire.step(other, moved(state, reply.action, outcome)), outcome.next_state
        player.turn()
        assert (player.place.episode, player.place.step) == (reply.next_episode, reply.next_step)
        assert player.place.action == reply.action
    assert wire.status(name).episode == wire.status(other).episode > 5
    posteriors = [wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=one)) for one in (name, other)]
    assert posteriors[0].transition_counts == posteriors[1].transition_counts


def test_a_report_ends_the_epoch_and_begins_the_next(wire: Wire) -> None:
    """In one commit, and one round trip for as many steps as were seen before; a repeated call has the same reply."""
    name = local(wire)
    player = Player(wire, name)
    for _ in range(12):
        version, before = wire.status(name).version, player.steps
        assert len(player.place.draws) == min(40, max(1, before))
        request, reply = player.turn()
        assert wire.status(name).transitions == player.steps
        if reply.episode_done:
            assert (reply.next.episode, reply.next.step) == (request.episode + 1, 0)
        else:
            assert (reply.next.episode, reply.next.step) == (request.episode, request.first_step + len(request.transitions))
        assert reply.next.state == request.transitions[-1].next_state
        again = wire.control.ReportEpisode(request)
        assert again.duplicates == len(request.transitions)
        assert (again.next, again.episode_done) == (reply.next, reply.episode_done)
        assert wire.status(name).version == version + (3 if reply.episode_done else 1)
    status = wire.status(name)
    assert (status.overridden_actions, len(status.open_episodes)) == (0, 1)
    assert status.episode > 3
    assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name)).ok


def test_a_client_that_begins_again_goes_on(tmp_path: Path) -> None:
    """After a restart of both, from the step that was reported last."""
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Wire(server.target) as wire:
        name = local(wire, max_epoch_steps=1_000)
        player = Player(wire, name)
        while player.steps < 100:
            player.turn()
        player.part = 7
        player.turn()
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Wire(server.target) as wire:
        place = wire.start(name, player.state, with_policy=True)
        assert (place.episode, place.step, place.action) == (player.place.episode, player.place.step, player.place.action)
        assert (place.draws, place.policy) == (player.place.draws, player.place.policy)
        player.wire = wire
        player.turn()
        assert wire.status(name).transitions == player.steps


def test_any_action_is_accepted_and_counted(wire: Wire) -> None:
    """Which the client did not draw: learned, as it is of episodes."""
    name = local(wire)
    player = Player(wire, name)
    while player.steps < 20:
        player.turn()
    place, other = player.place, 1 - player.place.action
    seen = control_pb2.Transition(state=place.state, action=other, next_state=0)
    request = control_pb2.ReportEpisodeRequest(agent=name, episode=place.episode, first_step=place.step, transitions=[seen])
    assert not wire.control.ReportEpisode(request).HasField("next")
    assert wire.status(name).overridden_actions == 1


def test_a_paused_agent_gives_no_policy(wire: Wire) -> None:
    """Not even one with a fallback policy: the actions would not be its own. What was played before is learned."""
    fallback = model_pb2.Policy(horizon=1, num_states=10, actions=[0] * 10)
    name = local(wire, fallback_policy=fallback)
    player = Player(wire, name)
    while player.steps < 100:
        player.turn()
    wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=name, reason="test"))
    _, reply = player.turn()
    assert reply.episode_done
    assert not reply.HasField("next")
    refusal(lambda: wire.start(name, player.state, with_policy=True), Code.FAILED_PRECONDITION, "AGENT_PAUSED")


def test_reports_that_make_no_sense(wire: Wire) -> None:
    name = local(wire)
    player = Player(wire, name)
    while player.steps < 50:
        player.turn()
    place = player.place
    seen = control_pb2.Transition(state=place.state, action=0, next_state=(place.state + 1) % 10)

    def report(*transitions: control_pb2.Transition, first: int = place.step, **more: Any) -> Any:
        named = {"agent": name, "episode": place.episode, "transitions": transitions, **more}
        return wire.control.ReportEpisode(control_pb2.ReportEpisodeRequest(first_step=first, **named))

    refusal(report, Code.INVALID_ARGUMENT, field="transitions")
    refusal(lambda: report(seen, first=place.step + 1), Code.OUT_OF_RANGE)
    refusal(lambda: report(seen, first=-1), Code.INVALID_ARGUMENT, field="first_step")
    refusal(lambda: report(seen, seen), Code.INVALID_ARGUMENT, "STATE_MISMATCH")
    elsewhere = control_pb2.StartEpisodeRequest(state=place.state)
    refusal(lambda: report(seen, next=elsewhere), Code.INVALID_ARGUMENT, field="next.state")
    report(seen)
    other = control_pb2.Transition(state=place.state, action=1, next_state=place.state)
    refusal(lambda: report(other), Code.ALREADY_EXISTS, "TRANSITION_CONFLICT")
    episodic = wire.create(make_spec())
    wire.start(episodic)
    named = {"agent": episodic, "episode": 1, "transitions": [transition()]}
    refusal(lambda: wire.control.ReportEpisode(control_pb2.ReportEpisodeRequest(first_step=1, **named)), field="first_step")
