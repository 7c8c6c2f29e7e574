"""What of a Gymnasium environment is part of an agent's definition, and whether a run can be repeated."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from safe_psrl import SafePsrlOptions, SpecError
from safe_psrl_client import AlreadyExistsError, Client, EpisodeResult, RemoteAgent, play
from safe_psrl_testbed import LocalAgent
from safe_psrl_testbed.descriptions import description_of
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost, Seen
from safe_psrl_testbed.quantiser import Quantiser
from tests.service_fixtures import agent_name, client, server  # noqa: F401  # fixtures

EDGES = [0.0, 1.0, 2.0, 4.0]


class Drift(gymnasium.Env[Any, Any]):
    """A place from 0 to 4 that drifts at random, begins anywhere, and ends at 4."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 4.0, (1,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place = float(self.np_random.uniform(0, 3))
        return np.array([self.place]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = min(max(self.place + float(self.np_random.uniform(-1, action)), 0.0), 4.0)
        return np.array([self.place]), float(action), self.place == 4, False, {"cost": 0.5 * action, "toll": 0.5}


def half(seen: Seen) -> float:
    """As the environment has it."""
    return 0.5 * float(seen.action)


def whole(seen: Seen) -> float:
    return 1.0 * float(seen.action)


def bridge_of(of: Any = half, edges: list[float] = EDGES, **options: Any) -> GymBridge:
    given = {"quantiser": Quantiser([edges]), "horizon": 6, "seed": 3, **options}
    return GymBridge(Drift(), [GymCost("effort", 2.0, 0.5, of=of)], **given)


CHANGES: dict[str, Callable[[], GymBridge]] = {
    "quantiser": lambda: bridge_of(edges=[0.0, 1.0, 2.5, 4.0]),
    "reward_range": lambda: bridge_of(reward_range=(-1.0, 1.0)),
    "cost effort": lambda: bridge_of(of=whole),
    "actions": lambda: bridge_of(actions=[1, 0]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_agent_is_not_continued_with_another_meaning(client: Client, agent_name: str, name: str) -> None:
    assert not client.create_agent(agent_name, bridge_of(initial_state=0).definition(seed=1)).existed
    assert client.create_agent(agent_name, bridge_of(initial_state=0).definition(seed=1)).existed
    other = CHANGES[name]()
    other._knowledge["initial_state"] = 0
    with pytest.raises(AlreadyExistsError, match=f"another definition: spec.environment.{name} is ") as caught:
        client.create_agent(agent_name, other.definition(seed=1))
    assert caught.value.metadata["fields"] == f"spec.environment.{name}"


def test_a_cost_from_info_is_named_by_its_key() -> None:
    assert bridge_of(of="toll").environment["cost effort"] == "info['toll']"


def test_other_features_are_another_quantiser() -> None:
    def first(observation: Any) -> Any:
        return observation

    def negated(observation: Any) -> Any:
        return -observation

    texts = {Quantiser([EDGES], features=features).description() for features in (first, negated, np.asarray)}
    assert len(texts) == 3
    assert Quantiser([EDGES]).description() != Quantiser([EDGES], outside="refuse").description()
    assert Quantiser([EDGES]).description() == Quantiser([np.array(EDGES)]).description()


def test_a_function_is_described_by_its_meaning_and_not_by_its_comments() -> None:
    original = description_of(half)

    def half_again(seen: Seen) -> float:
        # another comment
        return 0.5 * float(seen.action)

    assert original.startswith("half ")
    assert description_of(half_again).startswith("half_again ")
    assert description_of(whole) != original
    assert description_of(len) == "len"


def test_the_definition_is_the_same_without_a_seed() -> None:
    """First states are random and are estimated: an agent would otherwise exist with another definition at each start."""
    assert bridge_of(seed=None).definition() == bridge_of(seed=None).definition()


def test_without_a_seed_episodes_differ_between_runs() -> None:
    def run() -> list[EpisodeResult]:
        bridge = bridge_of(seed=None)
        return play(bridge, LocalAgent(bridge.spec), 5)

    assert run() != run()


@pytest.mark.parametrize("looks_first", [True, False])
def test_the_same_seed_gives_the_same_run(client: Client, agent_name: str, looks_first: bool) -> None:
    """Through the service as in this process, whether or not the first states were estimated with the same bridge."""
    here, there = bridge_of(), bridge_of()
    expected = play(here, LocalAgent(here.spec, SafePsrlOptions("published"), seed=2), 20)
    assert len({result.steps for result in expected}) > 1
    definition = (there if looks_first else bridge_of()).definition(seed=2, method="published")
    client.create_agent(agent_name, definition)
    assert play(there, RemoteAgent(client, agent_name, "local"), 20) == expected


def test_a_fallback_policy_is_played_while_the_agent_is_paused(client: Client, agent_name: str) -> None:
    bridge = bridge_of(initial_state=0)
    client.create_agent(agent_name, bridge.definition(fallback_policy=[1, 0, 1]))
    policy = client.get_agent(agent_name, with_spec=True).spec.fallback_policy
    assert (policy.horizon, policy.num_states) == (6, 4)  # with the state of ended episodes
    assert list(policy.actions) == [1, 0, 1, 0] * 6
    episode = client.start_episode(agent_name, 0).episode
    client.pause_agent(agent_name)
    assert client.get_action(agent_name, 0, episode, 0).action == 1


@pytest.mark.parametrize(
    ("policy", "message"),
    [([1, 0], r"^shape of fallback_policy = \[2\]"), ([1, 0.5, 0], r"^fallback_policy\[1\] = 0.5: must be a whole number")],
)
def test_a_fallback_policy_that_does_not_fit_is_refused(policy: list[float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        bridge_of(initial_state=0).definition(fallback_policy=policy)
