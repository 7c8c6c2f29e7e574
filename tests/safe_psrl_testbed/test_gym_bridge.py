"""Gymnasium environments as agents play them."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from safe_psrl import SafePsrlOptions, SpecError, TransitionError
from safe_psrl_client import Client, EpisodeResult, RemoteAgent, play
from safe_psrl_client.play import play_steps
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import LocalAgent, TabularEnvironment, scenario_named
from safe_psrl_testbed import gym_environments as registered
from safe_psrl_testbed.environment import Environment, Outcome
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost, Seen
from safe_psrl_testbed.quantiser import Quantiser

COST = GymCost("wear", cost_budget=2.0, satisfiable_cost=0.5)


class Walk(gymnasium.Env[Any, Any]):
    """Action 1 goes one place on, and at place `end` it is over. Every step earns its action and costs `cost`."""

    def __init__(self, end: int = 3, first: int = 0, truncate: int = 0, cost: float | None = 0.5) -> None:
        self.observation_space = spaces.Discrete(4, start=first)
        self.action_space = spaces.Discrete(2, start=5)
        self.end, self.first, self.truncate, self.cost = end, first, truncate, cost

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.steps = 0, 0
        return np.int64(self.first), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place, self.steps = self.place + int(action) - 5, self.steps + 1
        over = self.place == self.end
        info = {} if self.cost is None else {"cost": self.cost}
        return np.int64(self.first + self.place), float(action - 5), over, self.steps == self.truncate, info


class Script:
    """An agent that plays one action and remembers what it was shown."""

    advisory = False

    def __init__(self, action: int) -> None:
        self.action = action
        self.shown: list[tuple[Any, ...]] = []

    def begin(self, state: int) -> int:
        self.shown.append((state,))
        return self.action

    def step(self, *seen: Any) -> int | None:
        self.shown.append(seen)
        return None if seen[-1] else self.action

    def finish(self) -> None:
        self.shown.append(("finished",))

    def abandon(self) -> None:
        self.shown.append(("abandoned",))


def bridge_of(env: gymnasium.Env[Any, Any] | None = None, costs: Sequence[GymCost] = (COST,), **options: Any) -> GymBridge:
    """A walk for at most nine steps, unless `options` say otherwise."""
    return GymBridge(env or Walk(), costs, **{"horizon": 9, **options})


def test_a_termination_leads_to_the_terminal_state() -> None:
    agent = Script(1)
    assert play(bridge_of(Walk(end=2, first=7)), agent, 1) == [EpisodeResult(2.0, (1.0,), 2)]
    assert agent.shown == [(0,), (0, 1, 1, 1.0, (0.5,), False), (1, 1, 4, 1.0, (0.5,), True), ("finished",)]


def test_an_episode_may_end_with_its_first_step() -> None:
    bridge = bridge_of(Walk(end=1))
    agent = LocalAgent(bridge.spec, SafePsrlOptions("published"), seed=1)
    assert [result.steps for result in play(bridge, agent, 5)] != [9] * 5
    assert agent.state.transition_counts[0, 0, 1, 4] > 0
    assert agent.state.transition_counts[0, 0, 1, 1] == 0


def test_the_horizon_ends_an_episode_where_it_is() -> None:
    agent = Script(0)
    play(bridge_of(horizon=3), agent, 1)
    assert agent.shown[-2:] == [(0, 0, 0, 0.0, (0.5,), True), ("finished",)]
    assert len(agent.shown) == 5


def test_a_truncation_does_not_lead_to_the_terminal_state() -> None:
    agent = Script(1)
    play(bridge_of(Walk(truncate=2)), agent, 1)
    assert agent.shown[-2:] == [(1, 1, 2, 1.0, (0.5,), True), ("finished",)]


def test_the_horizon_is_the_environments_limit_unless_given() -> None:
    lake = gymnasium.make("FrozenLake-v1", max_episode_steps=12)
    assert GymBridge(lake, [COST]).spec.horizon == 12
    assert GymBridge(lake, [COST], horizon=7).spec.horizon == 7
    with pytest.raises(SpecError, match=r"^horizon = None: is missing, and the environment has no limit of steps; give one$"):
        GymBridge(Walk(), [COST])


def test_the_specification_knows_only_the_terminal_state() -> None:
    spec = bridge_of(reward_guess=0.75).spec
    assert (spec.num_states, spec.num_actions, spec.constraint_names) == (5, 2, ("wear",))
    assert spec.learned_signals.all()
    assert (spec.signals[0, 0, :4] == 0.75).all()
    assert (spec.signals[:, 0, 4] == 0).all()
    assert spec.support[0, :4].all()
    assert spec.support[0, 4].tolist() == [[False] * 4 + [True]] * 2
    assert spec.initial_distribution.tolist() == [1, 0, 0, 0, 0]


def test_known_values_are_in_the_specification() -> None:
    table = np.arange(8).reshape(4, 2) / 8
    near = np.abs(np.arange(4)[:, None] - np.arange(4)) <= 1
    bridge = GymBridge(
        Walk(),
        [GymCost("wear", 2.0, 0.5, known=table)],
        horizon=9,
        known_reward=table,
        support=np.repeat(near[:, None], 2, axis=1),
        available_actions=[[True, True]] * 3 + [[True, False]],
        initial_distribution=[0.5, 0.5, 0, 0],
    )
    spec = bridge.spec
    assert not spec.learned_signals.any()
    np.testing.assert_array_equal(spec.signals[:, 0], [[*table.tolist(), [0, 0]]] * 2)
    assert spec.support[0, 0, 1].tolist() == [True, True, False, False, True]
    assert spec.available_actions[3:].tolist() == [[True, False], [True, True]]
    assert spec.initial_distribution.tolist() == [0.5, 0.5, 0, 0, 0]


@pytest.mark.parametrize(
    ("field", "knowledge"),
    [
        ("known_reward", {"known_reward": np.zeros((5, 2))}),
        ("support", {"support": np.ones((4, 2, 5), np.bool_)}),
        ("available_actions", {"available_actions": np.ones((4, 3), np.bool_)}),
    ],
)
def test_a_table_of_another_shape_is_refused_by_its_name(field: str, knowledge: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=rf"^shape of {field} = "):
        _ = bridge_of(**knowledge).spec


@pytest.mark.parametrize(
    "known",
    [
        {0: 0.25},
        lambda _state, action: 0.25 if action == 0 else None,
        [[0.25, math.nan]] * 4,
    ],
    ids=["by action", "by function", "by table"],
)
def test_a_cost_may_be_known_in_part(known: Any) -> None:
    """The rest is learned, and known entries are not. The terminal state costs nothing for certain."""
    bridge = GymBridge(Walk(), [dataclasses.replace(COST, known=known)], horizon=9)
    learned, costs = bridge.spec.learned[1, 0], bridge.spec.signals[1, 0]
    assert learned[:4].tolist() == [[False, True]] * 4
    assert costs[:4, 0].tolist() == [0.25] * 4
    assert not learned[4].any()
    assert list(bridge.definition().cmdp.constraints[0].unknown_costs.values) == [0.0, 1.0] * 4 + [0.0, 0.0]


def test_next_states_may_be_listed() -> None:
    listed = [[[s, -1, -1], [*sorted({min(s + 1, 3), 4}), -1]] for s in range(4)] + [[[4, -1, -1]] * 2]
    bridge = bridge_of(next_states=listed)
    agent = LocalAgent(bridge.spec, seed=1)
    play(bridge, agent, 10)
    assert bridge.spec.lists_next_states
    assert agent.state.transition_counts.sum() > 0


def test_varying_first_states_are_estimated_by_resets() -> None:
    class Anywhere(Walk):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed, options=options)
            return self.np_random.integers(2), {}

    start = bridge_of(Anywhere(), seed=3).spec.initial_distribution
    assert start[:2] == pytest.approx([0.5, 0.5], abs=0.2)
    assert (start[2:4] > 0).all()  # else an agent would refuse to begin there
    assert start[4] == 0


def test_costs_come_from_a_key_a_function_or_a_wrapper() -> None:
    class Paid(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            *rest, info = self.env.step(action)
            return *rest, {**info, "toll": 0.25}

    def by_place(seen: Seen) -> float:
        return float(seen.next_observation) / 4

    costs = [COST, GymCost("toll", 2.0, 0.5, of="toll"), GymCost("place", 2.0, 0.5, of=by_place)]
    bridge = GymBridge(Paid(Walk()), costs, horizon=9)
    bridge.reset()
    assert bridge.step(1) == Outcome(1, 1.0, (0.5, 0.25, 0.25), False)


def test_a_missing_cost_is_refused_and_the_episode_abandoned() -> None:
    agent = Script(1)
    with pytest.raises(TransitionError, match=r"^transition info\['cost'\] = None: is missing, and is the cost 'wear'; give "):
        play(bridge_of(Walk(cost=None)), agent, 1)
    assert agent.shown == [(0,), ("abandoned",)]


@pytest.mark.parametrize("cost", [-0.5, 1.5, float("nan")])
def test_a_cost_off_the_scale_is_refused(cost: float) -> None:
    bridge = bridge_of(Walk(cost=cost))
    bridge.reset()
    with pytest.raises(TransitionError, match=r"cost 'wear' = .*: must be a number from 0 to 1; scale it, and its budget"):
        bridge.step(0)


def test_rewards_are_scaled_and_refused_off_the_scale() -> None:
    bridge = bridge_of(reward_range=(-1.0, 3.0))
    bridge.reset()
    assert [bridge.step(0).reward, bridge.step(1).reward] == [0.25, 0.5]
    narrow = bridge_of(reward_range=(0.0, 0.5))
    narrow.reset()
    with pytest.raises(TransitionError, match=r"reward = 1: is outside reward_range, 0 to 0\.5$"):
        narrow.step(1)
    with pytest.raises(SpecError, match="reward_range"):
        bridge_of(reward_range=(1.0, 1.0))


def test_a_termination_that_contradicts_the_bridge_raises() -> None:
    bridge = bridge_of(Walk(end=1), terminates=False)
    assert bridge.spec.num_states == 4
    bridge.reset()
    with pytest.raises(TransitionError, match="contradicts terminates=False"):
        bridge.step(1)


def test_other_spaces_need_a_quantiser_and_a_list_of_actions() -> None:
    pendulum = gymnasium.make("Pendulum-v1", max_episode_steps=5)
    quantiser = Quantiser.even([-1, -1, -8], [1, 1, 8], [3, 3, 4])
    torques = [np.array([torque], np.float32) for torque in (-2, 0, 2)]

    def effort(seen: Seen) -> float:
        return abs(float(seen.action[0])) / 2

    cost = GymCost("effort", 2.0, 0.5, of=effort)
    with pytest.raises(SpecError, match=r"^quantiser = None: is missing, and observations are Box, not Discrete; give one$"):
        GymBridge(pendulum, [cost], actions=torques)
    with pytest.raises(SpecError, match=r"^actions = None: are missing, and those of the environment are Box; list some$"):
        GymBridge(pendulum, [cost], quantiser=quantiser)
    bridge = GymBridge(
        pendulum, [cost], quantiser=quantiser, actions=torques, reward_range=(-17.0, 0.0), terminates=False, seed=1
    )
    results = play(bridge, LocalAgent(bridge.spec, SafePsrlOptions("certified"), seed=1), 20)
    assert {result.steps for result in results} == {5}
    assert bridge.spec.num_states == 36


def test_the_agent_of_a_service_and_the_one_in_process_learn_the_same() -> None:
    def bridge() -> GymBridge:
        lake = gymnasium.make("FrozenLake-v1", max_episode_steps=8)
        return GymBridge(
            lake, [GymCost("falls", 0.5, 0.1, of=lambda seen: float(seen.terminated and seen.reward == 0))], seed=4
        )

    here = bridge()
    expected = play(here, LocalAgent(here.spec, SafePsrlOptions("certified"), seed=2), 15)
    assert len({result.steps for result in expected}) > 1  # some fell
    there = bridge()
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("lake", there.definition(seed=2, method="certified"))
        assert play(there, RemoteAgent(client, "lake", "local"), 15) == expected
        learned = client.get_agent("lake", with_spec=True)
    assert learned.status.transitions == sum(result.steps for result in expected)
    assert learned.spec.options.method == "certified"


@pytest.mark.parametrize("name", registered.IDS)
def test_the_testbeds_environments_are_registered_and_pass_gymnasiums_checks(name: str) -> None:
    from gymnasium.utils.env_checker import check_env  # noqa: PLC0415

    env = gymnasium.make(name)
    check_env(env.unwrapped)
    assert env.spec is not None
    assert env.spec.max_episode_steps == env.unwrapped.problem.horizon


def test_a_registered_environment_has_the_episodes_of_its_seed() -> None:
    scenario = scenario_named("streaming-buffer")
    plain = scenario.environment()
    env = gymnasium.make("safe_psrl/StreamingBuffer-v0")
    state, _ = env.reset(seed=7)
    assert state == plain.reset(7)
    for step in range(10):
        seen, reward, terminated, truncated, info = env.step(step % 2)
        assert (seen, reward, info["costs"], truncated) == plain.step(step % 2)
        assert not terminated
        assert info["cost"] == info["costs"][0]


def test_without_a_seed_episodes_differ() -> None:
    def walk() -> tuple[int, ...]:
        env = gymnasium.make("safe_psrl/StreamingBuffer-v0")
        env.reset()
        return tuple(int(env.step(0)[0]) for _ in range(10))

    assert len({walk() for _ in range(12)}) > 1


def test_an_order_beyond_capacity_is_cut_to_what_fits() -> None:
    env = gymnasium.make("safe_psrl/Inventory-v0")
    world = scenario_named("inventory").environment()
    env.reset(seed=3)
    world.reset(3)
    stock = int(env.step(4)[0])
    world.step(4)
    assert stock > 0
    assert env.step(5)[1] == world.step(5 - stock).reward


def test_a_bridge_is_an_environment_of_the_testbed() -> None:
    """Both can be played by the same loop."""
    bridge: Environment = GymBridge(gymnasium.make("safe_psrl/FactoredToy-v0"), [COST], terminates=False)
    plain: Environment = TabularEnvironment(scenario_named("factored-toy").spec, scenario_named("factored-toy").transitions)
    assert bridge.reset(1) == plain.reset(1)
    assert [bridge.step(1) for _ in range(6)] == [plain.step(1) for _ in range(6)]


class Pump(gymnasium.Env[Any, Any]):
    """Never over: action 1 fills one of four levels, which pays, and costs 1; action 0 empties one."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.level = 0
        return self.level, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.level = min(max(self.level + (1 if action else -1), 0), 3)
        return self.level, float(self.level > 0), False, False, {"cost": float(action)}


def test_an_environment_without_an_end_is_a_continuing_task() -> None:
    """Reset once, and kept within an average cost per step."""
    bridge = GymBridge(Pump(), [GymCost("power", 0.6, 0.1)], horizon="continuing", terminates=False, seed=1)
    definition = bridge.definition(seed=1, fallback_policy=[0, 0, 0, 0])
    assert (definition.cmdp.continuing, definition.cmdp.horizon, definition.fallback_policy.horizon) == (True, 0, 1)
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("pump", definition)
        with RemoteAgent(client, "pump") as agent:
            results = list(islice(play_steps(bridge, agent), 200))
        status = client.get_agent("pump").status
    assert status.transitions == 200
    assert 0 < sum(result.costs[0] for result in results) <= 150


def test_a_continuing_task_neither_terminates_nor_is_truncated() -> None:
    with pytest.raises(SpecError, match="terminates"):
        GymBridge(Pump(), [COST], horizon="continuing")
    cost = GymCost("wear", 0.6, 0.1)
    bridge = GymBridge(Walk(end=9, truncate=1), [cost], horizon="continuing", terminates=False)
    bridge.reset()
    with pytest.raises(TransitionError, match="make the environment without a limit"):
        bridge.step(0)
