"""Agents with certificates: mixtures of policies through the service, repeatable and durable."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions, SimulatedRun
from safe_psrl.problem.documents import options_to_document, parse_document, spec_to_document, write_document
from safe_psrl_client import Client, InvalidArgumentError, RemoteAgent, play, spec_from_document
from safe_psrl_client import spec_to_document as spec_to_message_document
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message, unpack
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import Scenario, scenario_named

SEED, EPISODES = 4, 40


def definition(scenario: Scenario, **options: Any) -> model_pb2.AgentSpec:
    settings = model_pb2.SafePsrlOptions(method="certified", **options)
    return model_pb2.AgentSpec(cmdp=cmdp_to_message(scenario.spec), options=settings, seed=SEED)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "random:states=4,actions=3,horizon=4,constraints=2"])
@pytest.mark.parametrize("mode", ["step", "local"])
def test_learning_through_the_service_equals_the_library(name: str, mode: Any, tmp_path: Path) -> None:
    """The same seeds give the same counts, over a restart in the middle too."""
    scenario = scenario_named(name)
    environment = scenario.environment(SEED)
    for _ in range(2):
        with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Client(server.target) as client:
            client.create_agent("a", definition(scenario))
            play(environment, RemoteAgent(client, "a", mode), EPISODES // 2)
            counts = unpack(client.get_posterior("a").transition_counts)
            assert client.verify_agent("a").ok
    learner = SafePsrl(scenario.spec, SafePsrlOptions("certified"), SEED)
    run = SimulatedRun(learner, scenario.transitions_for(SEED), environment_seed=SEED)
    run.advance(EPISODES)
    assert np.array_equal(counts, run.state.transition_counts)


def test_a_mixture_is_stored_with_its_shares_and_plays_the_same_again(tmp_path: Path) -> None:
    """The policy that is played is one of the mixture's, and a restart changes neither."""
    scenario = scenario_named("streaming-buffer")
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Client(server.target) as client:
        client.create_agent("a", definition(scenario))
        play(scenario.environment(1), RemoteAgent(client, "a", "local"), 60)
        started = client.start_episode("a", 0, with_policy=True)
        before = [client.get_action("a", 0, episode=started.episode, step=0).action for _ in range(3)]
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Client(server.target) as client:
        after = client.get_action("a", 0, episode=started.episode, step=0).action
        policy = client.get_policy("a").policy
        status = client.get_agent("a").status
    assert {*before, after} == {started.action}
    assert policy == started.policy
    assert sum(part.share for part in policy.mixture) == pytest.approx(1.0)
    assert policy.actions in [part.actions for part in policy.mixture]
    assert status.method == "certified"
    assert status.certificate == model_pb2.CERTIFICATE_CONFIDENCE
    assert 0 < status.constraints[0].certified_cost <= 5 + 1e-9


def test_the_papers_methods_have_no_certificate() -> None:
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", "factored-toy", options=model_pb2.SafePsrlOptions(method="published"))
        client.start_episode("a", 0)
        status = client.get_agent("a").status
    assert status.certificate == model_pb2.CERTIFICATE_UNSPECIFIED
    assert not status.constraints[0].HasField("certified_cost")


def test_a_budget_without_a_certificate_is_reported() -> None:
    """Every action costs 0.5 a step, the budget is 1 in 4 steps: no policy is known to keep it."""
    spec = CmdpSpec(num_states=1, num_actions=1, horizon=4, reward=[[1]], constraints=[Constraint("power", [[0.5]], 1.0, 0.5)])
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", model_pb2.AgentSpec(cmdp=cmdp_to_message(spec)))
        client.start_episode("a", 0)
        status = client.get_agent("a").status
    assert status.certificate == model_pb2.CERTIFICATE_NONE
    assert status.constraints[0].certified_cost == pytest.approx(2.0)


def test_single_unknown_costs_through_the_service() -> None:
    """NaN in the library, a mask on the wire, null in JSON and NaN in TOML."""
    costs = [[0.0, float("nan")]]
    spec = CmdpSpec(num_states=1, num_actions=2, horizon=5, reward=[[0, 1]], constraints=[Constraint("c", costs, 1.0, 0.0)])
    message = model_pb2.AgentSpec(cmdp=cmdp_to_message(spec))
    assert list(message.cmdp.constraints[0].unknown_costs.values) == [0.0, 1.0]
    document = spec_to_document(spec)
    as_json = json.loads(write_document(document, "json"))
    assert as_json["constraints"][0]["cost"] == [[0.0, None]]
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", spec_from_document(as_json))
        assert client.create_agent("a", spec_from_document(parse_document(write_document(document, "toml"), "toml"))).existed
        stored = client.get_agent("a", with_spec=True).spec
        assert spec_to_message_document(stored)["constraints"][0]["cost"] == [[0.0, pytest.approx(float("nan"), nan_ok=True)]]
        assert stored.cmdp.constraints == message.cmdp.constraints
        started = client.start_episode("a", 0, with_policy=True)
        played = sum(part.share * list(part.actions).count(1) for part in started.policy.mixture)
    assert played == pytest.approx(1.0)


def test_the_stored_definition_has_its_method_in_full() -> None:
    """Defaults are filled in, so that a later release cannot change an agent."""
    scenario = scenario_named("factored-toy")
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", definition(scenario))
        client.create_agent("b", "factored-toy")
        options = client.get_agent("a", with_spec=True).spec.options
        assert {field.name: value for field, value in options.ListFields()} == options_to_document(SafePsrlOptions("certified"))
        assert client.get_agent("b", with_spec=True).spec.options == options  # the service's default


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"method": "certified", "pessimism_coefficient": 0.1}, "pessimism_coefficient"),
        ({"method": "published", "confidence": 0.9}, "confidence"),
        ({"method": "boldly"}, "method"),
        ({"method": "certified", "confidence": 1.0}, "confidence"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: dict[str, Any], field: str) -> None:
    with EmbeddedServer() as server, Client(server.target) as client:
        with pytest.raises(InvalidArgumentError, match=field):
            client.create_agent("a", "factored-toy", options=model_pb2.SafePsrlOptions(**options))
        assert list(client.list_agents()) == []
