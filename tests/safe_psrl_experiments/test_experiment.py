"""Whole experiments: their files, and that they do not depend on how they are run."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.safe_psrl.cases import spec_of

from safe_psrl import Constraint, SpecError
from safe_psrl.problem.documents import spec_to_document
from safe_psrl_experiments.experiment import Experiment, Outcome, run_experiment
from safe_psrl_experiments.results import RunRecord, columns, recorded_episodes, summary_of, write_file
from safe_psrl_experiments.runs import run_job
from safe_psrl_testbed import scenario_named

HEADER = (
    "algorithm,seed,episode,objective_regret,constraint_regret,constraint_regret_max,strong_violation,priced_regret,"
    "violating_episodes,detections,dual_variable,pessimism"
)

SUMMED = (
    *("objective_regret", "constraint_regret", "constraint_regret_max", "strong_violation"),
    *("priced_regret", "violating_episodes", "detections"),
)


def run(experiment: Experiment, directory: Path, jobs: int = 1) -> Outcome:
    outcome = run_experiment(experiment, directory, jobs, lambda _: None)
    assert outcome is not None
    return outcome


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    directory = tmp_path_factory.mktemp("finished")
    return directory, run(Experiment("factored-toy", ["safe-psrl"], 1_000, 3), directory)


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_results_have_these_columns_and_log_spaced_rows_for_each_seed(finished: tuple[Path, Outcome]) -> None:
    rows = rows_of(finished[0])
    assert ",".join(rows[0]) == HEADER
    expected = [("safe-psrl", str(seed), str(k)) for seed in (1, 2, 3) for k in recorded_episodes(1_000)]
    assert [(row["algorithm"], row["seed"], row["episode"]) for row in rows] == expected


def test_the_summary_is_the_end_of_the_results(finished: tuple[Path, Outcome]) -> None:
    directory, outcome = finished
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert summary == outcome.summary
    ends = [row for row in rows_of(directory) if row["episode"] == "1000"]
    for column in SUMMED:
        spread = summary["algorithms"]["safe-psrl"][column]
        assert spread["per_seed"] == [float(row[column]) for row in ends]
        assert spread["mean"] == pytest.approx(sum(spread["per_seed"]) / 3)
        assert spread["std"] == pytest.approx((sum((v - spread["mean"]) ** 2 for v in spread["per_seed"]) / 3) ** 0.5)


def test_seeds_may_begin_elsewhere(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    run(Experiment("factored-toy", ["safe-psrl"], 1_000, 2, first_seed=2), tmp_path)
    assert rows_of(tmp_path) == [row for row in rows_of(finished[0]) if row["seed"] != "1"]


def test_the_summarys_schema(finished: tuple[Path, Outcome]) -> None:
    summary = finished[1].summary
    assert summary["environment"] == "factored-toy"
    assert (summary["episodes"], summary["requested_episodes"], summary["interrupted"]) == (1_000, 1_000, False)
    assert summary["seeds"] == 3
    assert summary["optimum"] == {"reward": pytest.approx(2.0), "cost": pytest.approx(3.0)}
    assert set(summary["algorithms"]["safe-psrl"]) == {*SUMMED, "microseconds_per_episode"}
    assert summary["algorithms"]["safe-psrl"]["microseconds_per_episode"] > 0


def test_several_constraints_have_a_column_each(tmp_path: Path) -> None:
    outcome = run(Experiment("random:constraints=2", ["safe-psrl"], 300, 2), tmp_path)
    assert list(rows_of(tmp_path)[0]) == [
        *("algorithm", "seed", "episode", "objective_regret"),
        *(
            f"{column}.cost-{i}"
            for column in ("constraint_regret", "constraint_regret_max", "strong_violation")
            for i in (1, 2)
        ),
        *("priced_regret", "violating_episodes", "detections"),
        *(f"{column}.cost-{i}" for column in ("dual_variable", "pessimism") for i in (1, 2)),
    ]
    values = outcome.summary["algorithms"]["safe-psrl"]
    assert values["constraint_regret.cost-1"]["per_seed"] != values["constraint_regret.cost-2"]["per_seed"]
    assert len(outcome.summary["optimum"]["cost"]) == 2


def test_the_numbers_do_not_depend_on_the_number_of_processes(tmp_path: Path, finished: tuple[Path, Outcome]) -> None:
    reports: list[int] = []
    experiment = Experiment("factored-toy", ["safe-psrl"], 1_000, 3)
    run_experiment(experiment, tmp_path, 2, reports.append)
    assert 0 < sum(reports) <= experiment.total_episodes == 3_000  # the last ones may come too late, but none comes twice
    assert (tmp_path / "results.csv").read_bytes() == (finished[0] / "results.csv").read_bytes()


def test_an_experiment_that_was_stopped_is_compared_where_all_runs_were() -> None:
    spec = scenario_named("factored-toy").spec

    def record(seed: int, episodes: list[int], finished: bool) -> RunRecord:
        zeros = dict.fromkeys(columns(spec), 0.0)
        rows = [zeros | {"episode": k, "objective_regret": float(k * seed), "constraint_regret": -float(k)} for k in episodes]
        return RunRecord("safe-psrl", seed, rows, 1.0, 2.0, [3.0], finished)

    summary = summary_of(spec, "factored-toy", 100, [record(1, [1, 10, 100], True), record(2, [1, 10, 57], False)])
    assert summary["interrupted"]
    assert (summary["episodes"], summary["requested_episodes"]) == (10, 100)
    assert summary["algorithms"]["safe-psrl"]["objective_regret"]["per_seed"] == [10.0, 20.0]


def test_a_kernel_is_drawn_from_the_prior_for_each_seed(tmp_path: Path) -> None:
    """The optimum that is reported is then the mean over the seeds' worlds."""
    path = tmp_path / "drawn.json"
    spec = spec_of(4, [[0, 0.2], [0, 0.6], [0, 1]], Constraint("moves", [[0, 1]] * 3, 2, 0.5))
    path.write_text(json.dumps(spec_to_document(spec)), encoding="utf-8")
    jobs = Experiment(str(path), ["safe-psrl"], 50, 3).jobs()
    first, again = ([run_job(job, lambda _: None, lambda: False) for job in jobs] for _ in range(2))
    assert len({record.optimum_reward for record in first}) == 3
    assert [record.rows for record in first] == [record.rows for record in again]
    summary = summary_of(scenario_named(str(path)).spec, str(path), 50, first)
    assert summary["optimum"]["reward"] == pytest.approx(sum(record.optimum_reward for record in first) / 3)


def test_a_seed_whose_kernel_cannot_be_drawn_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = type(scenario_named("random"))
    asked: list[int] = []

    def draw(_: object, seed: int) -> Any:
        asked.append(seed)
        if seed == 3:
            raise SpecError("satisfiable_cost", 0.1, "was reached on none")
        return scenario_named("factored-toy").transitions

    toy = scenario("toy", scenario_named("factored-toy").spec, None)
    monkeypatch.setattr("safe_psrl_testbed.changing.scenario_named", lambda _: toy)
    monkeypatch.setattr(scenario, "transitions_for", draw)
    with pytest.raises(SpecError, match="satisfiable_cost"):
        Experiment("toy", ["safe-psrl"], 10, 4)
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": "nowhere"}, "environment = 'nowhere'"),
        ({"algorithms": ["safe-psl"]}, r"algorithm = 'safe-psl'.*did you mean safe-psrl\?"),
        ({"algorithms": []}, "algorithms = "),
        ({"episodes": 0}, "must be at least 1"),
        ({"seeds": 0}, "must be at least 1"),
        ({"first_seed": -1}, "first_seed = -1: must be a whole number, from 0 to"),
        ({"parameters": {"psrl": {"x": 1}}}, "parameters for = 'psrl'"),
        ({"parameters": {"safe-psrl": {"pessimism_coefficient": "theorm"}}}, "one of theorem, published, literal"),
        ({"parameters": {"safe-psrl": {"pessimism_coefficient": -1}}}, "must not be negative"),
        ({"parameters": {"safe-psrl": {"cap_pessimism": 3}}}, "must be true or false"),
        ({"parameters": {"safe-psrl": {"max_kernel_draws": 0}}}, "max_kernel_draws = 0"),
        ({"parameters": {"safe-psrl": {"pessimism_coeficient": 1}}}, r"did you mean pessimism_coefficient\?"),
        ({"parameters": {"safe-psrl": {"drift.on_detct": "forget"}}}, r"on_detct = .*did you mean on_detect\?"),
        ({"parameters": {"safe-psrl": {"drift.on_detect": "forge"}}}, "must be one of alert, forget, pause"),
        ({"parameters": {"safe-psrl": {"drift.on_detect": "pause"}}}, "in an experiment use alert or forget"),
        ({"then": ("streaming-buffer@5",)}, r"then = 'streaming-buffer@5': has the states, actions, horizon and constraints"),
        ({"then": ("factored-toy@10",)}, "must come before the last of 10 episodes"),
        ({"then": ("factored-toy@5",), "algorithms": ["psrl"]}, "algorithm = 'psrl': does not support a world that changes"),
        ({"walk": "departure=0.1@2"}, "needs an environment with parameters, such as streaming-buffer, not factored-toy"),
    ],
)
def test_what_cannot_be_run_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"environment": "factored-toy", "algorithms": ["safe-psrl"], "episodes": 10, "seeds": 1}
    with pytest.raises(SpecError, match=message):
        Experiment(**(arguments | changes))


def test_a_file_is_replaced_in_one_step_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_file(path, "old")
    before = path.stat().st_ino
    write_file(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_ino != before  # not written in place
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
