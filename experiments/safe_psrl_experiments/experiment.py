"""An experiment: algorithms over seeds in one environment, written to a directory."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safe_psrl.errors import SpecError
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.figures import draw_figures
from safe_psrl_experiments.results import summary_of, write_results
from safe_psrl_experiments.runs import Job, Report, run_jobs, run_on_cluster
from safe_psrl_testbed import scenario_named

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Experiment:
    """What to run. `parameters` are by algorithm. Raises `SpecError` for whatever cannot be run, before anything is."""

    environment: str
    algorithms: list[str]
    episodes: int
    seeds: int
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seeds < 1:
            raise SpecError("episodes, seeds", [self.episodes, self.seeds], "must be at least 1")
        if not self.algorithms:
            raise SpecError("algorithms", [], "must name one at least")
        for name in self.parameters:
            if name not in self.algorithms:
                raise SpecError(
                    "parameters for", name, f"belong to no algorithm of this experiment: {', '.join(self.algorithms)}"
                )
        scenario = scenario_named(self.environment)
        first = scenario.transitions_for(1)
        for name in self.algorithms:
            algorithm_named(name).start(scenario.spec, first, self.parameters.get(name, {}), 1, self.episodes).advance(1)
        if scenario.transitions is None:
            for seed in range(2, self.seeds + 1):
                scenario.transitions_for(seed)

    @property
    def spec(self) -> CmdpSpec:
        return scenario_named(self.environment).spec

    @property
    def total_episodes(self) -> int:
        return self.episodes * self.seeds * len(self.algorithms)

    def jobs(self) -> list[Job]:
        return [
            Job(self.environment, name, seed, self.episodes, self.parameters.get(name, {}))
            for name in self.algorithms
            for seed in range(1, self.seeds + 1)
        ]


@dataclass(frozen=True)
class Outcome:
    summary: dict[str, Any]
    files: list[Path]
    figures: list[Path]


def run_experiment(
    experiment: Experiment, directory: Path, processes: int, report: Report, scheduler: str | None = None
) -> Outcome | None:
    """Run, and write results and figures of whatever was done; None if it was stopped before anything was.

    What was done is kept under `directory` until all is done, so that the same experiment goes on where it was stopped. With
    the address of a Dask scheduler the runs are made on its cluster.
    """
    checkpoints, jobs = directory / CHECKPOINTS, experiment.jobs()
    found = run_jobs(jobs, processes, report, checkpoints) if scheduler is None else run_on_cluster(jobs, scheduler, report)
    records = [record for record in found if record.rows]
    if not records:
        return None
    spec = experiment.spec
    summary = summary_of(spec, experiment.environment, experiment.episodes, records, len(jobs))
    files = write_results(directory, spec, summary, records)
    figures = draw_figures(directory, spec, records, caption_of(experiment, summary))
    if not summary["interrupted"]:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return Outcome(summary, files, figures)


def caption_of(experiment: Experiment, summary: dict[str, Any]) -> str:
    spec = experiment.spec
    budgets = ", ".join(
        f"{name}: budget {budget:g}, satisfiable {satisfiable:g}"
        for name, budget, satisfiable in zip(spec.constraint_names, spec.cost_budgets, spec.satisfiable_costs, strict=True)
    )
    settings = "; ".join(
        f"{name}: " + ", ".join(f"{key} {value}" for key, value in _settings(experiment, name).items())
        for name in experiment.algorithms
        if _settings(experiment, name)
    )
    seeds = "1 seed" if summary["seeds"] == 1 else f"mean and range of {summary['seeds']} seeds"
    return (
        f"{experiment.environment}: {spec.num_states} states, {spec.num_actions} actions, horizon {spec.horizon}; {budgets}; "
        f"{summary['episodes']:,} episodes{' (stopped early)' if summary['interrupted'] else ''}, {seeds}\n{settings}"
    )


def _settings(experiment: Experiment, name: str) -> dict[str, Any]:
    return algorithm_named(name).settings(experiment.parameters.get(name, {}))
