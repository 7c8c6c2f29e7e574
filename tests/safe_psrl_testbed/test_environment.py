"""The environment protocol, on environments whose kernel is known."""

from collections.abc import Sequence

import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint, SpecError
from safe_psrl_testbed import Environment, Outcome, TabularEnvironment, scenario_named
from tests.safe_psrl.cases import spec_of


def play(environment: Environment, seed: int | None, action: int = 0) -> list[int]:
    """The states of one episode in which `action` is always played."""
    first = environment.reset(seed)
    return [first, *(environment.step(action).next_state for _ in range(environment.spec.horizon))]


def two_states(horizon: int, reward: float = 0.5, cost: float = 0.25, **options: object) -> CmdpSpec:
    constraint = Constraint("cost", np.full((2, 1), cost), cost_budget=1.0, satisfiable_cost=0.5)
    return spec_of(horizon, np.full((2, 1), reward), constraint, **options)


def test_an_episode_lasts_exactly_the_horizon() -> None:
    environment = scenario_named("streaming-buffer").environment()
    environment.reset(1)
    assert [environment.step(0).done for _ in range(10)] == [False] * 9 + [True]


def test_a_seed_gives_and_restarts_its_episodes() -> None:
    environment, other = (scenario_named("streaming-buffer").environment() for _ in range(2))
    expected = [play(environment, 7), play(environment, None)]
    assert [play(other, 7), play(other, None)] == expected
    play(environment, 3)
    environment.reset(7)
    environment.step(1)  # an episode that is left in the middle
    assert [play(environment, 7), play(environment, None)] == expected


@pytest.mark.parametrize("seeds", [(7, None, None, None, None), range(5)], ids=["next episodes", "other seeds"])
def test_episodes_differ(seeds: Sequence[int | None]) -> None:
    environment = scenario_named("streaming-buffer").environment()
    assert len({tuple(play(environment, seed)) for seed in seeds}) > 1


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_an_invalid_seed_is_refused(seed: object) -> None:
    with pytest.raises(SpecError, match=r"^seed = "):
        scenario_named("factored-toy").environment().reset(seed)


def test_a_step_outside_an_episode_is_refused() -> None:
    environment = scenario_named("factored-toy").environment()
    with pytest.raises(SpecError, match="reset the environment first"):
        environment.step(0)
    play(environment, 1)
    with pytest.raises(SpecError, match=r"^action = 0: comes after the episode's end; reset the environment first$"):
        environment.step(0)


def test_an_unavailable_action_is_refused_and_changes_nothing() -> None:
    environment = scenario_named("inventory").environment()
    environment.reset(1)
    state = environment.step(5).next_state
    assert state > 0
    with pytest.raises(SpecError, match=rf"^action = 5: is not available in state {state}$"):
        environment.step(5)
    left = [environment.step(0) for _ in range(6)]
    assert [outcome.done for outcome in left] == [False] * 5 + [True]


@pytest.mark.parametrize("action", [-1, 2, True, 0.0, None])
def test_an_action_out_of_range_is_refused(action: object) -> None:
    environment = scenario_named("streaming-buffer").environment()
    environment.reset(1)
    with pytest.raises(SpecError, match=r"^action = "):
        environment.step(action)


def test_signals_are_their_means_unless_noisy() -> None:
    environment = scenario_named("factored-toy").environment()
    environment.reset(1)
    assert environment.step(1) == Outcome(next_state=1, reward=pytest.approx(1 / 3), costs=(1.0,), done=False)
    assert environment.step(0) == Outcome(next_state=1, reward=0.0, costs=(0.0,), done=False)


def test_noisy_signals_are_0_or_1_with_their_mean() -> None:
    environment = TabularEnvironment(two_states(horizon=4000, reward=0.7), np.full((2, 1, 2), 0.5), noisy=True)
    environment.reset(5)
    seen = [environment.step(0) for _ in range(4000)]
    rewards, costs = [outcome.reward for outcome in seen], [outcome.costs[0] for outcome in seen]
    assert {*rewards, *costs} == {0.0, 1.0}
    assert np.mean(rewards) == pytest.approx(0.7, abs=0.03)  # four standard deviations
    assert np.mean(costs) == pytest.approx(0.25, abs=0.03)


def test_next_states_have_the_kernels_frequencies() -> None:
    environment = TabularEnvironment(two_states(horizon=4000), [[[0.8, 0.2]], [[0.8, 0.2]]])
    assert np.mean(play(environment, 3)[1:]) == pytest.approx(0.2, abs=0.026)


def test_kernels_may_differ_by_step() -> None:
    stay, leave = np.eye(2)[:, None], np.eye(2)[::-1, None]
    environment = TabularEnvironment(two_states(horizon=3, stationary=False), np.array([stay, leave, stay]))
    assert play(environment, 1) == [0, 0, 1, 1]


def test_signals_may_differ_by_step() -> None:
    spec = spec_of(2, [[[0.25]], [[0.75]]], Constraint("cost", [[0.0]], cost_budget=1.0, satisfiable_cost=0.0))
    environment = TabularEnvironment(spec, [[[1.0]]])
    environment.reset(1)
    assert [environment.step(0).reward for _ in range(2)] == [0.25, 0.75]


def test_the_first_state_follows_the_initial_distribution() -> None:
    environment = TabularEnvironment(two_states(horizon=1, initial_distribution=[0.25, 0.75]), np.full((2, 1, 2), 0.5))
    starts = [environment.reset(2), *(environment.reset() for _ in range(1999))]
    assert np.mean(starts) == pytest.approx(0.75, abs=0.04)


def test_an_invalid_kernel_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^sum of transitions\[1\]\[0\] = 0\.9: must be 1$"):
        TabularEnvironment(two_states(horizon=3), [[[0.5, 0.5]], [[0.5, 0.4]]])


def test_an_environment_moves_to_another_kernel_at_the_next_step() -> None:
    environment = scenario_named("factored-toy").environment()
    environment.reset(1)
    assert environment.step(1).next_state == 1
    environment.move_to(np.tile(np.eye(3)[0], (3, 2, 1)))  # everything leads to state 0
    assert [environment.step(1).next_state for _ in range(3)] == [0, 0, 0]
    with pytest.raises(SpecError, match="transitions"):
        environment.move_to(np.zeros((3, 2, 3)))
