"""What a run writes down."""

import itertools

import pytest

from safe_psrl import SafePsrl, SimulatedRun, exact_optimum
from safe_psrl_experiments.results import recorded_episodes
from safe_psrl_experiments.runs import Job, run_job
from safe_psrl_testbed import scenario_named


def never() -> bool:
    return False


@pytest.mark.parametrize("episodes", [1, 2, 3, 10, 199, 200, 201, 5_000, 400_000])
def test_rows_go_from_the_first_episode_to_the_last(episodes: int) -> None:
    rows = recorded_episodes(episodes)
    assert rows[0] == 1
    assert rows[-1] == episodes
    assert rows == sorted(set(rows))
    assert len(rows) <= 201


def test_rows_are_evenly_spaced_in_their_logarithm() -> None:
    rows = recorded_episodes(400_000)
    ratios = [later / earlier for earlier, later in itertools.pairwise(rows) if earlier > 100]
    assert max(ratios) < 1.08
    assert len(rows) > 150


def test_a_job_records_the_books_of_its_run() -> None:
    reports: list[int] = []
    record = run_job(Job("factored-toy", "safe-psrl", 3, 700), reports.append, never)
    assert (record.algorithm, record.seed, record.finished) == ("safe-psrl", 3, True)
    assert sum(reports) == record.episodes == 700
    assert [row["episode"] for row in record.rows] == recorded_episodes(700)
    scenario = scenario_named("factored-toy")
    run = SimulatedRun(SafePsrl(scenario.spec, seed=3), scenario.transitions_for(3), environment_seed=3)
    for row in record.rows:
        run.advance(int(row["episode"]) - run.episode)
        for column in ("objective_regret", "constraint_regret", "constraint_regret_max", "violating_episodes"):
            assert row[column] == getattr(run.ledger, column)[0]
        assert (row["dual_variable"], row["pessimism"]) == (run.dual_variables[0], run.pessimism[0])
    assert record.optimum_reward == exact_optimum(scenario.spec, scenario.transitions_for(3)).reward
    assert record.seconds > 0


def test_a_job_that_is_stopped_records_what_was_done() -> None:
    done: list[int] = []
    record = run_job(Job("factored-toy", "safe-psrl", 1, 100_000), done.append, lambda: sum(done) >= 500)
    assert not record.finished
    assert 500 <= record.episodes == sum(done) < 100_000
    assert [row["episode"] for row in record.rows[:-1]] == recorded_episodes(100_000)[: len(record.rows) - 1]


def test_a_job_that_is_stopped_at_once_has_no_rows() -> None:
    record = run_job(Job("factored-toy", "safe-psrl", 1, 100), lambda _: None, lambda: True)
    assert (record.rows, record.episodes, record.finished) == ([], 0, False)


@pytest.mark.parametrize(("preset", "number"), [("theorem", 5.0), ("literal", 0.25), ("published", 0.05)])
def test_parameters_may_be_presets(preset: str, number: float) -> None:
    by_name, by_number = (
        run_job(Job("factored-toy", "safe-psrl", 1, 50, {"pessimism_coefficient": value}), lambda _: None, never)
        for value in (preset, number)
    )
    assert by_name.rows == by_number.rows
