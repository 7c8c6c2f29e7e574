"""Experiments with continuing tasks: their units, their algorithms, and what these do."""

import csv
import json
from pathlib import Path

import pytest

from safe_psrl import SpecError, exact_optimum, preset
from safe_psrl_experiments.algorithms import algorithm_named, algorithms_named
from safe_psrl_experiments.experiment import Experiment, caption_of
from safe_psrl_experiments.results import summary_of, write_results
from safe_psrl_experiments.runs import run_job
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.kernels import KERNELS

NAME = "continuing-buffer"
ALL = ["safe-psrl", "certified", "cmdp-psrl", "psconrl", "psrl", "safe-baseline"]


def test_files_count_steps(tmp_path: Path) -> None:
    """No file speaks of episodes; the optimum is an average per step."""
    experiment = Experiment(NAME, ["cmdp-psrl", "safe-baseline"], 2_000, 2)
    records = [run_job(job, lambda _: None, lambda: False) for job in experiment.jobs()]
    summary = summary_of(experiment.spec, NAME, 2_000, records)
    files = write_results(tmp_path, experiment.spec, summary, records)
    caption = caption_of(experiment, summary)
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["step"] == "1"
    assert rows[-1]["step"] == "2000"
    assert "violating_steps" in rows[0]
    written = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (written["steps"], written["seeds"]) == (2_000, 2)
    assert written["optimum"]["reward"] == pytest.approx(7 / 12)
    assert "2,000 steps" in (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "continuing; fast-service: budget 0.5, satisfiable 0.1; 2,000 steps" in caption
    for path in files:
        assert "episode" not in path.read_text(encoding="utf-8")


def test_all_are_those_for_the_task() -> None:
    """Each kind of task has its algorithms; the others are refused by name."""
    assert algorithms_named("all", continuing=True) == ALL
    assert "psconrl" not in algorithms_named("all")
    with pytest.raises(SpecError, match="algorithm = 'dope': is defined for tasks with episodes only"):
        Experiment(NAME, ["dope"], 10, 1)
    with pytest.raises(SpecError, match="algorithm = 'psconrl': is defined for continuing tasks only"):
        Experiment("factored-toy", ["psconrl"], 10, 1)


@pytest.mark.parametrize("name", ALL)
def test_pieces_make_the_same_run(name: str) -> None:
    """A run that is cut into pieces, or continued by another from its tables, is the same run."""
    spec, p = preset(NAME), KERNELS[NAME]()
    whole, parts, other = (algorithm_named(name).start(spec, p, {}, 3, 600) for _ in range(3))
    whole.advance(600)
    parts.advance(250)
    for table, source in zip(other.tables.values(), parts.tables.values(), strict=True):
        table[...] = source
    other.episode = parts.episode
    other.advance(350)
    assert other.ledger.objective_regret[0] == whole.ledger.objective_regret[0]
    assert other.ledger.strong_violation[0] == whole.ledger.strong_violation[0]


def test_the_algorithms_differ_as_they_should() -> None:
    """Certified keeps the budget; samples without pessimism exceed it; PSRL ignores it; the baseline stays at c0."""
    spec, p = preset(NAME), KERNELS[NAME]()
    runs = {name: algorithm_named(name).start(spec, p, {}, 1, 20_000) for name in ALL}
    for run in runs.values():
        run.advance(20_000)
    strong = {name: float(run.ledger.strong_violation[0]) for name, run in runs.items()}
    assert strong["certified"] == strong["safe-baseline"] == 0.0
    assert strong["psrl"] > 5_000
    assert strong["cmdp-psrl"] > 50
    assert strong["psconrl"] > 50
    for run in runs.values():  # at the budget's price, 10/9 of reward per unit
        priced = run.ledger.objective_regret[0] + 10 / 9 * run.ledger.strong_violation[0]
        assert run.ledger.priced_regret[0] == pytest.approx(priced, rel=1e-4, abs=0.1)
    cautious = exact_optimum(spec, p, spec.satisfiable_costs)
    lost = (7 / 12 - cautious.reward) * 20_000
    assert runs["safe-baseline"].ledger.objective_regret[0] == pytest.approx(lost, rel=0.05)
    assert runs["certified"].ledger.objective_regret[0] < lost / 3


def test_the_environment_never_ends() -> None:
    """It can be stepped for ever after one reset, and not before."""
    environment = scenario_named(NAME).environment(seed=1)
    with pytest.raises(SpecError, match="reset the environment first"):
        environment.step(0)
    environment.reset()
    assert not any(environment.step(0).done for _ in range(100))
