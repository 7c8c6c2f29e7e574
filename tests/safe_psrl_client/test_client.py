"""The calls of the service, with threads."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from safe_psrl_client import (
    AgentPausedError,
    AlreadyExistsError,
    AsyncClient,
    Client,
    DeadlineExceededError,
    EpisodeClosedError,
    InvalidArgumentError,
    InvalidDocumentError,
    NotFoundError,
    RemoteAgent,
    StepGapError,
    Transition,
    UnavailableError,
    options_from_document,
    spec_from_document,
    spec_to_document,
)
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, events_pb2


def test_creating_an_agent_again_is_harmless_and_with_another_definition_refused(client: Client, agent_name: str) -> None:
    options = options_from_document({"method": "published", "pessimism_coefficient": "theorem"})
    assert not client.create_agent(agent_name, "factored-toy", options=options, seed=1).existed
    assert client.create_agent(agent_name, "factored-toy", options=options, seed=1).existed
    with pytest.raises(AlreadyExistsError):
        client.create_agent(agent_name, "factored-toy", seed=2)
    assert client.get_agent(agent_name, with_spec=True).spec.options.pessimism_coefficient == 5


def test_a_definition_in_full_can_be_taken_from_another_agent(client: Client, toy: str) -> None:
    definition = client.get_agent(toy, with_spec=True).spec
    again = spec_from_document(spec_to_document(definition))
    assert client.create_agent(toy, again).existed
    with pytest.raises(InvalidArgumentError, match="belong in the specification"):
        client.create_agent(toy, again, seed=3)


def test_an_unknown_preset_is_refused_with_the_known_ones(client: Client, agent_name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="streaming-buffer"):
        client.create_agent(agent_name, "streaming-bufer")
    with pytest.raises(NotFoundError):
        client.get_agent(agent_name)


def test_every_repeated_call_has_the_reply_of_the_first(client: Client, toy: str) -> None:
    start = client.start_episode(toy, 0, request_id="one", with_policy=True)
    assert client.start_episode(toy, 0, request_id="one", with_policy=True) == start
    seen = Transition(0, start.action, 0 if start.action == 0 else 1)
    first = client.step(toy, start.episode, 0, seen)
    again = client.step(toy, start.episode, 0, seen)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (first.action, first.episode_done) == (again.action, again.episode_done)
    assert client.report_transition(toy, start.episode, 0, seen).duplicate
    assert client.get_action(toy, seen.next_state, start.episode, 1).action == first.action
    assert client.report_episode(toy, start.episode, [seen]).duplicates == 1
    ended = client.end_episode(toy, start.episode)
    assert (ended.end, ended.steps) == (events_pb2.EPISODE_END_TRUNCATED, 1)
    assert client.end_episode(toy, start.episode, events_pb2.EPISODE_END_ABANDONED) == ended
    assert client.get_agent(toy).status.transitions == 1


def test_a_step_that_conflicts_leaves_a_gap_or_comes_late_changes_nothing(client: Client, toy: str) -> None:
    episode = client.start_episode(toy, 0).episode
    with pytest.raises(StepGapError) as caught:
        client.step(toy, episode, 2, Transition(0, 0, 0))
    assert caught.value.expected_step == 0
    client.step(toy, episode, 0, Transition(0, 1, 1))
    with pytest.raises(AlreadyExistsError):
        client.step(toy, episode, 0, Transition(0, 0, 0))
    client.end_episode(toy, episode)
    with pytest.raises(EpisodeClosedError):
        client.step(toy, episode, 1, Transition(1, 0, 1))
    assert client.get_agent(toy).status.transitions == 1


def test_a_paused_agent_begins_nothing_until_it_is_resumed(client: Client, toy: str) -> None:
    paused = client.pause_agent(toy, "for lunch")
    assert (paused.condition, paused.condition_reason) == (admin_pb2.AGENT_CONDITION_PAUSED, "for lunch")
    with pytest.raises(AgentPausedError, match="for lunch"):
        client.start_episode(toy, 0)
    assert client.resume_agent(toy, "after lunch").condition == admin_pb2.AGENT_CONDITION_ACTIVE
    assert [entry.reason for entry in client.list_events(toy)] == ["after lunch", "for lunch", ""]
    assert client.start_episode(toy, 0).episode == 1


def test_policy_and_posterior_can_be_read(client: Client, toy: str) -> None:
    start = client.start_episode(toy, 0, with_policy=True)
    assert client.get_policy(toy).policy == start.policy
    assert list(client.get_posterior(toy).transition_counts.shape) == [1, 3, 2, 3]


def test_agents_are_listed_over_pages(client: Client, agent_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{agent_name[-100:].lstrip('-')}{i}" for i in range(5)]
    for name in names:
        client.create_agent(name, "factored-toy")
    monkeypatch.setattr("safe_psrl_client.sync.client.PAGE_SIZE", 2)
    listed = [status.agent for status in client.list_agents()]
    assert listed == sorted(listed)
    assert set(names) <= set(listed)


def test_an_exported_agent_continues_under_another_name(client: Client, toy: str) -> None:
    with client.episode(toy, 0) as episode:
        while not episode.done:
            episode.report(0 if episode.action == 0 else (episode.state + 1) % 3)
    content = client.export_agent(toy)
    copy = toy[:100] + "-copy"
    imported = client.import_agent(copy, content)
    original = client.get_agent(toy).status
    assert (imported.episode, imported.transitions) == (original.episode, original.transitions) == (1, 6)
    assert client.get_posterior(copy).transition_counts == client.get_posterior(toy).transition_counts
    verdict = client.verify_agent(copy)
    assert verdict.ok, verdict.difference
    with pytest.raises(InvalidDocumentError):
        client.import_agent(copy + "2", content[:-1])


def test_a_deleted_agent_is_gone(client: Client, toy: str) -> None:
    client.delete_agent(toy)
    with pytest.raises(NotFoundError):
        client.get_agent(toy)


def test_watching_shows_an_agent_and_ends_when_it_is_closed(client: Client, toy: str) -> None:
    watched = client.watch_agents([toy], interval=0.1)
    assert [status.agent for status in next(watched).agents] == [toy]
    client.start_episode(toy, 0)
    assert next(watched).agents[0].episode == 1
    watched.close()


def test_policy_and_posterior_are_plain_lists(client: Client, toy: str) -> None:
    with client.episode(toy, 0) as episode:
        first = episode.action
        episode.report(1)
    found = client.get_policy(toy)
    assert (found.episode, len(found.actions), {len(row) for row in found.actions}) == (1, 6, {3})
    assert found.actions[0][0] == first
    posterior = client.get_posterior(toy)
    assert posterior.counts[0][0][first] == [0, 1, 0]
    assert sum(sum(row) for state in posterior.counts[0] for row in state) == 1
    assert posterior.version == client.get_agent(toy).status.version


def test_an_unavailable_service_is_retried_until_patience_ends() -> None:
    with Client("127.0.0.1:1", patience=0.2) as client, pytest.raises(UnavailableError):
        client.get_agent("a")


@pytest.mark.parametrize("target", ["127.0.0.1:1", "unix:/nowhere/safe-psrl.sock"])
async def test_without_a_service_the_first_call_fails_within_two_seconds(target: str) -> None:
    wanted = f"^no service at {target}: start it with safe-psrl serve$"
    began = time.monotonic()
    with Client(target) as client, pytest.raises(UnavailableError, match=wanted):
        client.get_agent("a")
    assert time.monotonic() - began < 2
    began = time.monotonic()
    async with AsyncClient(target) as other:
        with pytest.raises(UnavailableError, match=wanted):
            await other.get_agent("a")
    assert time.monotonic() - began < 2


def test_without_a_service_a_stream_fails_as_soon() -> None:
    with Client("127.0.0.1:1") as client:
        agent = RemoteAgent(client, "a", "stream")
        with pytest.raises(UnavailableError, match="no service at"):
            agent.begin(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.get_action("a", "s"), "state = 's': must be a whole number"),
        (lambda client: client.get_action(5, 1), "agent = 5: must be text"),
        (lambda client: client.start_episode("a", 1.5), "state = 1.5: must be a whole number"),
        (lambda client: client.step("a", 1, 0, Transition(0, "x", 1)), "action = 'x': must be a whole number"),
        (lambda client: client.step("a", 1, 0, Transition(0, 0, 1, "x")), "reward = 'x': must be a number"),
        (lambda client: client.step("a", 1, 0, Transition(0, 0, 1, costs=["x"])), r"costs = \['x'\]: must be a list"),
        (lambda client: client.step("a", 1, 0, (0, 0, 1)), "must be Transition"),
        (lambda client: client.create_agent("a", 5), "definition = 5: must be AgentSpec or the name of a preset"),
        (lambda client: client.create_agent("a", "inventory", seed=-1), "seed = -1: must be a whole number, at least 0"),
        (lambda client: client.create_agent("a", "inventory", options={"method": 3}), "options.method = 3: must be text"),
        (lambda client: client.create_agent("a", "inventory", options={"metod": "x"}), "did you mean method"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_field(client: Client, call: Callable[[Client], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(client)


def test_a_silent_service_fails_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(target, timeout=0.2) as client, pytest.raises(DeadlineExceededError):
            client.get_agent("a")


def test_every_call_carries_the_agent_for_routing() -> None:
    """Seen by a server that is not ours."""
    seen: list[dict[str, str]] = []

    class Witness(admin_pb2_grpc.AdminServiceServicer):
        def GetAgent(  # noqa: N802  # the contract's name
            self, _request: admin_pb2.GetAgentRequest, context: grpc.ServicerContext
        ) -> admin_pb2.GetAgentResponse:
            seen.append(dict(context.invocation_metadata()))
            assert 0 < context.time_remaining() < 15  # a deadline of 10 s, which gRPC rounds
            return admin_pb2.GetAgentResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Witness(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}") as client:
        client.get_agent("site/buffer é")
    server.stop(None).wait()
    assert seen[0]["agent"] == "site/buffer%20%C3%A9"
