"""Experiments whose runs begin with a log: its counts, what is refused, and how much of a cold start's regret is left."""

from typing import Any

import numpy as np
import pytest
from tests.safe_psrl.cases import spec_of

from safe_psrl import Constraint, SafePsrl, SafePsrlOptions, SimulatedRun, SpecError
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.experiment import Experiment, caption_of
from safe_psrl_experiments.runs import Job, run_job
from safe_psrl_experiments.warm_starts import LogOptions, logged_counts
from safe_psrl_testbed import scenario_named

BUFFER = scenario_named("streaming-buffer")


def counts(seed: int, log: LogOptions) -> Any:
    return np.asarray(logged_counts(BUFFER.spec, BUFFER.transitions_for(seed), seed, log).transition_counts)


def test_a_log_has_every_step_of_its_episodes_with_actions_at_random() -> None:
    found = counts(1, LogOptions(200, 0.5))
    assert found.sum() == 0.5 * 200 * 10
    by_action = found.sum(axis=(0, 1, 3))
    assert by_action[0] == pytest.approx(500, abs=60)
    assert (found == counts(1, LogOptions(200, 0.5))).all()
    assert (found != counts(2, LogOptions(200, 0.5))).any()
    assert (found[0] > 0).sum() <= (BUFFER.transitions_for(1)[0] > 0).sum()


def test_a_log_can_come_from_another_world() -> None:
    elsewhere = counts(1, LogOptions(100, environment="streaming-buffer:fast=0,slow=0"))
    assert elsewhere[0, 0, :, 0].sum() == elsewhere.sum() == 1000, "nothing ever arrives there"


def test_what_is_learned_is_summed() -> None:
    energy = Constraint("energy", [[0.0, 1.0], [0.5, 1.0]], 2.0, 1.0)
    spec = spec_of(4, [[0.25, 0.5], [0.0, 1.0]], energy, reward_learned=True)
    known = logged_counts(spec, np.full((1, 2, 2, 2), 0.5), 1, LogOptions(50, 2.0))
    visits = np.asarray(known.visits)
    assert visits.sum() == 2.0 * 50 * spec.horizon
    assert np.asarray(known.signal_sums)[0] == pytest.approx(visits * spec.signals[0])


def test_a_run_begins_with_the_counts_of_its_seed() -> None:
    parameters = {"warm_start.episodes": 100}
    record = run_job(Job("streaming-buffer", "certified", 3, 200, parameters), lambda _: None, lambda: False)
    learner, transitions = SafePsrl(BUFFER.spec, SafePsrlOptions("certified"), 3), BUFFER.transitions_for(3)
    known = logged_counts(BUFFER.spec, transitions, 3, LogOptions(100))
    run = SimulatedRun(learner, transitions, environment_seed=3, known=known)
    run.advance(200)
    assert record.rows[-1]["objective_regret"] == run.ledger.objective_regret[0]


def test_the_figures_say_so() -> None:
    experiment = Experiment("streaming-buffer", ["certified"], 1, 1, {"certified": {"warm_start.episodes": 7}})
    caption = caption_of(experiment, {"seeds": 1, "episodes": 1, "interrupted": False})
    assert "warm_start.episodes 7, warm_start.weight 1" in caption


@pytest.mark.parametrize(
    ("environment", "parameters", "reason"),
    [
        ("streaming-buffer", {"weight": 1.0}, "warm_start.episodes.*is missing"),
        ("streaming-buffer", {"episodes": 0}, "episodes"),
        ("streaming-buffer", {"episodes": 1, "weight": -1.0}, "weight.*above 0"),
        ("streaming-buffer", {"episodes": 1, "rows": 1}, "warm_start.rows.*is not one of"),
        ("streaming-buffer", {"episodes": 1, "environment": "inventory"}, "transitions"),
        ("continuing-buffer", {"episodes": 1}, "tasks with episodes"),
    ],
)
def test_mistakes(environment: str, parameters: dict[str, Any], reason: str) -> None:
    named = {f"warm_start.{name}": value for name, value in parameters.items()}
    with pytest.raises(SpecError, match=reason):
        Experiment(environment, ["certified"], 10, 1, {"certified": named})


def regrets(environment: str, episodes: int, **parameters: Any) -> Any:
    """[seeds]: after that many episodes."""
    scenario, found = scenario_named(environment), []
    for seed in range(1, 11):
        named = {name.replace("__", "."): value for name, value in parameters.items()}
        run = algorithm_named("certified").start(scenario.spec, scenario.transitions_for(seed), named, seed, episodes)
        run.advance(episodes)
        found.append(run.ledger.objective_regret[0])
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["streaming-buffer", "inventory"])
def test_a_log_saves_most_of_the_regret_of_a_cold_start(environment: str) -> None:
    cold, warm = regrets(environment, 2000), regrets(environment, 2000, warm_start__episodes=1000)
    assert warm.mean() <= 0.4 * cold.mean()
    assert (warm < cold).all()


@pytest.mark.slow
def test_a_log_of_another_world_is_forgotten() -> None:
    other = {"warm_start__episodes": 1000, "warm_start__environment": "streaming-buffer:departure=0.5"}
    cold, misled = regrets("streaming-buffer", 5000), regrets("streaming-buffer", 5000, **other, drift__on_detect="forget")
    assert (misled <= 1.5 * cold).all()
