"""An experiment: algorithms over seeds in one environment, written to a directory."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import MAX_INTEGER, checked_integer
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.figures import draw_figures
from safe_psrl_experiments.results import summary_of, unit_of, write_results
from safe_psrl_experiments.runs import Job, Report, run_jobs, run_on_cluster
from safe_psrl_testbed import changing_scenario, scenario_named

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Experiment:
    """What to run. `parameters` are by algorithm; `then` and `walk` change the world, as in `changing_scenario`.

    In a continuing task, `episodes` are steps. Raises `SpecError` for whatever cannot be run, before anything is.
    """

    environment: str
    algorithms: list[str]
    episodes: int
    seeds: int
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    then: tuple[str, ...] = ()
    walk: str | None = None
    first_seed: int = 1

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seeds < 1:
            raise SpecError("episodes, seeds", [self.episodes, self.seeds], "must be at least 1")
        checked_integer("first_seed", self.first_seed, 0, MAX_INTEGER - self.seeds)
        if not self.algorithms:
            raise SpecError("algorithms", [], "must name at least one")
        for name in self.parameters:
            if name not in self.algorithms:
                raise SpecError(
                    "parameters for", name, f"belong to no algorithm of this experiment: {', '.join(self.algorithms)}"
                )
        changing = changing_scenario(self.environment, self.then, self.walk, self.episodes)
        scenario = changing.first
        seed = self.first_seed
        first, later = scenario.transitions_for(seed), changing.changes_for(seed, self.episodes)
        for name in self.algorithms:
            run = algorithm_named(name).start(scenario.spec, first, self.parameters.get(name, {}), seed, self.episodes)
            run.advance(1)
            for kernel in [*later.values()][:1]:
                run.move_to(kernel)
        for drawn in (known for known in (scenario, *(world for _, world in changing.then)) if known.transitions is None):
            for other in self.seed_range[1:]:
                drawn.transitions_for(other)

    @property
    def spec(self) -> CmdpSpec:
        return scenario_named(self.environment).spec

    @property
    def changes(self) -> list[tuple[int, str]]:
        """The changes of `then`: the episodes before each, and the environment."""
        return [(int(text.rpartition("@")[2]), text.rpartition("@")[0]) for text in self.then]

    @property
    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def total_episodes(self) -> int:
        return self.episodes * self.seeds * len(self.algorithms)

    def jobs(self) -> list[Job]:
        return [
            Job(self.environment, name, seed, self.episodes, self.parameters.get(name, {}), self.then, self.walk)
            for name in self.algorithms
            for seed in self.seed_range
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

    What was done is kept under `directory` until all is done, so that the same experiment continues where it was stopped. With
    the address of a Dask scheduler the runs are made on its cluster.
    """
    checkpoints, jobs = directory / CHECKPOINTS, experiment.jobs()
    found = run_jobs(jobs, processes, report, checkpoints) if scheduler is None else run_on_cluster(jobs, scheduler, report)
    records = [record for record in found if record.rows]
    if not records:
        return None
    spec = experiment.spec
    summary = summary_of(spec, experiment.environment, experiment.episodes, records, len(jobs), experiment.changes)
    if experiment.walk is not None:
        summary["walk"] = experiment.walk
    files = write_results(directory, spec, summary, records)
    moments = [after for after, _ in experiment.changes]
    figures = draw_figures(directory, spec, records, caption_of(experiment, summary), moments)
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
    changes = "".join(f", then {name} after {after:,} {unit_of(spec)}s" for after, name in experiment.changes)
    if experiment.walk is not None:
        changes = f" with the walk {experiment.walk}"
    watched = any(_settings(experiment, name).get("drift.detect") for name in experiment.algorithms)
    marks = [*(["dotted line: the world changes"] if experiment.changes else []), *(["triangle: drift detected"] * watched)]
    horizon = "continuing" if spec.is_continuing else f"horizon {spec.horizon}"
    sizes = f"{spec.num_states} states, {spec.num_actions} actions, {horizon}"
    return (
        f"{experiment.environment}{changes}: {sizes}; {budgets}; "
        f"{summary['episodes']:,} {unit_of(spec)}s{' (stopped early)' if summary['interrupted'] else ''}, {seeds}\n"
        + "; ".join([part for part in (settings, *marks) if part])
    )


def _settings(experiment: Experiment, name: str) -> dict[str, Any]:
    return algorithm_named(name).settings(experiment.parameters.get(name, {}))
