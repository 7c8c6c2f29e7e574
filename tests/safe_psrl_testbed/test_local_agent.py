"""The agent in process learns exactly as the library's compiled run does."""

from collections.abc import Callable

import numpy as np
import pytest

from safe_psrl import SafePsrl, SafePsrlOptions, SimulatedRun, SpecError
from safe_psrl.errors import TransitionError
from safe_psrl_client import play
from safe_psrl_testbed import Scenario, TabularEnvironment, scenario_named
from safe_psrl_testbed.local_agent import LocalAgent


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy", "random:states=5,constraints=2"])
def test_it_equals_a_simulated_run_to_the_bit(name: str) -> None:
    scenario = scenario_named(name)
    options = SafePsrlOptions(cap_pessimism=True)
    agent = LocalAgent(scenario.spec, options, seed=4)
    play(TabularEnvironment(scenario.spec, scenario.transitions_for(0), seed=11), agent, 60)
    run = SimulatedRun(SafePsrl(scenario.spec, options, seed=4), scenario.transitions_for(0), environment_seed=11)
    run.advance(60)
    assert agent.episode == run.state.episode == 60
    assert np.array_equal(agent.state.dual_variables, run.state.dual_variables)
    assert np.array_equal(agent.state.transition_counts, run.state.transition_counts)


def test_results_are_sums_over_the_episode(world: Callable[[int], TabularEnvironment], buffer: Scenario) -> None:
    agent = LocalAgent(buffer.spec)
    seen: list[object] = []
    results = play(world(1), agent, 3, on_episode=seen.append)
    assert seen == results
    assert all(result.steps == 10 and 0 <= result.reward <= 10 and 0 <= result.costs[0] <= 10 for result in results)


def test_signals_that_are_learned_must_be_given(buffer: Scenario) -> None:
    document = {"reward_learned": True}
    from safe_psrl.problem.documents import spec_from_document, spec_to_document  # noqa: PLC0415

    agent = LocalAgent(spec_from_document(spec_to_document(buffer.spec) | document))
    action = agent.begin(0)
    with pytest.raises(TransitionError, match="reward"):
        agent.step(0, action, 0)
    assert agent.step(0, action, 0, reward=0.5) is not None
    assert agent.state.visits.sum() == 1


def test_a_bad_seed_is_refused(buffer: Scenario) -> None:
    with pytest.raises(SpecError):
        LocalAgent(buffer.spec, seed=-1)
