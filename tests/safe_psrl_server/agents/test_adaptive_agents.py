"""Agents with adaptive pessimism: randomised plans through the service, repeatable and durable."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import SafePsrl, SafePsrlOptions, SimulatedRun
from safe_psrl.problem.documents import options_to_document
from safe_psrl_client import Client, InvalidArgumentError, RemoteAgent, play
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import cmdp_to_message, unpack
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import Scenario, scenario_named

SEED, EPISODES = 4, 40


def definition(scenario: Scenario, **options: Any) -> model_pb2.AgentSpec:
    settings = model_pb2.SafePsrlOptions(method="adaptive", **options)
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
    learner = SafePsrl(scenario.spec, SafePsrlOptions("adaptive"), SEED)
    run = SimulatedRun(learner, scenario.transitions_for(SEED), environment_seed=SEED)
    run.advance(EPISODES)
    assert np.array_equal(counts, run.state.transition_counts)


def test_a_randomised_policy_carries_its_probabilities_and_plays_the_same_again(tmp_path: Path) -> None:
    """A plan's probabilities are distributions, its actions are possible under them, and a restart changes neither."""
    scenario = scenario_named("streaming-buffer")
    spec = scenario.spec
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Client(server.target) as client:
        client.create_agent("a", definition(scenario))
        play(scenario.environment(1), RemoteAgent(client, "a", "local"), 60)
        started = client.start_episode("a", 0, with_policy=True)
        before = [client.get_action("a", 0, episode=started.episode, step=0).action for _ in range(3)]
    with EmbeddedServer(store=f"sqlite:{tmp_path}") as server, Client(server.target) as client:
        after = client.get_action("a", 0, episode=started.episode, step=0).action
        policy = client.get_policy("a").policy
    assert {*before, after} == {started.action}
    assert policy == started.policy
    probabilities = np.array(policy.probabilities).reshape(spec.horizon, spec.num_states, spec.num_actions)
    actions = np.array(policy.actions).reshape(spec.horizon, spec.num_states)
    assert np.allclose(probabilities.sum(axis=-1), 1.0)
    assert (np.take_along_axis(probabilities, actions[..., None], axis=-1) > 0).all()
    assert ((probabilities > 0) & (probabilities < 1)).any()


def test_the_stored_definition_has_its_method_in_full() -> None:
    """Defaults are filled in, so that a later release cannot change an agent."""
    scenario = scenario_named("factored-toy")
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", definition(scenario))
        client.create_agent("b", "factored-toy")
        options = client.get_agent("a", with_spec=True).spec.options
        assert {field.name: value for field, value in options.ListFields()} == options_to_document(SafePsrlOptions("adaptive"))
        assert client.get_agent("b", with_spec=True).spec.options.method == "published"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"method": "adaptive", "pessimism_coefficient": 0.1}, "pessimism_coefficient"),
        ({"method": "published", "confidence": 2.0}, "confidence"),
        ({"method": "boldly"}, "method"),
        ({"method": "adaptive", "confidence": -1.0}, "confidence"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: dict[str, Any], field: str) -> None:
    with EmbeddedServer() as server, Client(server.target) as client:
        with pytest.raises(InvalidArgumentError, match=field):
            client.create_agent("a", "factored-toy", options=model_pb2.SafePsrlOptions(**options))
        assert list(client.list_agents()) == []
