"""What runs record, at log-spaced episodes, and the files made of it: `results.csv`, `summary.json`, `comparison.md`."""

import csv
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import Run, algorithm_named

ROWS_PER_RUN = 200
PER_CONSTRAINT = ("constraint_regret", "constraint_regret_max", "strong_violation", "dual_variable", "pessimism")


@dataclass(frozen=True)
class RunRecord:
    """One algorithm with one seed: what it wrote down, how long it took, and the optimum that it is measured against."""

    algorithm: str
    seed: int
    rows: list[dict[str, float]]  # by column, beginning with "episode"
    seconds: float
    optimum_reward: float
    optimum_costs: list[float]
    finished: bool

    @property
    def episodes(self) -> int:
        return int(self.rows[-1]["episode"]) if self.rows else 0


def recorded_episodes(episodes: int) -> list[int]:
    """About `ROWS_PER_RUN` episodes from 1 to `episodes`, evenly spaced in their logarithm."""
    spaced = np.geomspace(1, episodes, min(ROWS_PER_RUN, episodes))
    return sorted({*np.rint(spaced).astype(int).tolist(), episodes})


def columns(spec: CmdpSpec) -> list[str]:
    """The columns of a row; with several constraints, those about one carry its name."""
    regret, regret_max, strong, dual, pessimism = (per_constraint(spec, column) for column in PER_CONSTRAINT)
    return ["episode", "objective_regret", *regret, *regret_max, *strong, "violating_episodes", *dual, *pessimism]


def per_constraint(spec: CmdpSpec, column: str) -> list[str]:
    names = spec.constraint_names
    return [column] if len(names) == 1 else [f"{column}.{name}" for name in names]


def row_of(spec: CmdpSpec, run: Run) -> dict[str, float]:
    ledger = run.ledger
    values = [
        run.episode,
        float(ledger.objective_regret[0]),
        *ledger.constraint_regret.tolist(),
        *ledger.constraint_regret_max.tolist(),
        *ledger.strong_violation.tolist(),
        int(ledger.violating_episodes[0]),
        *run.dual_variables.tolist(),
        *run.pessimism.tolist(),
    ]
    return dict(zip(columns(spec), values, strict=True))


def write_file(path: Path, content: str | bytes) -> None:
    """Replace `path` in one step, so that a reader never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


def results_csv(spec: CmdpSpec, records: list[RunRecord]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["algorithm", "seed", *columns(spec)])
    for record in records:
        writer.writerows([record.algorithm, record.seed, *row.values()] for row in record.rows)
    return text.getvalue()


def summary_of(
    spec: CmdpSpec, environment: str, requested: int, records: list[RunRecord], num_jobs: int | None = None
) -> dict[str, Any]:
    """The end of each run. If runs were cut short, all are compared at the last episode that every one of them recorded.

    `num_jobs` runs were requested; fewer records mean that some never started.
    """
    last = common_episode(records)
    algorithms: dict[str, Any] = {}
    for name in dict.fromkeys(record.algorithm for record in records):
        mine = [record for record in records if record.algorithm == name]
        ends = [next(row for row in record.rows if row["episode"] == last) for record in mine]
        measured = [
            "objective_regret",
            *per_constraint(spec, "constraint_regret"),
            *per_constraint(spec, "constraint_regret_max"),
            *per_constraint(spec, "strong_violation"),
            "violating_episodes",
        ]
        algorithms[name] = {column: _spread([end[column] for end in ends]) for column in measured}
        algorithms[name]["microseconds_per_episode"] = fmean(1e6 * record.seconds / record.episodes for record in mine)
    costs = [fmean(costs) for costs in zip(*(record.optimum_costs for record in records), strict=True)]
    return {
        "environment": environment,
        "episodes": last,
        "requested_episodes": requested,
        "interrupted": not all(record.finished for record in records) or len(records) < (num_jobs or 0),
        "seeds": len({record.seed for record in records}),
        "optimum": {
            "reward": fmean(record.optimum_reward for record in records),
            "cost": costs[0] if len(costs) == 1 else costs,
        },
        "algorithms": algorithms,
    }


def common_episode(records: list[RunRecord]) -> int:
    """The greatest episode that every run recorded."""
    common = set.intersection(*({int(row["episode"]) for row in record.rows} for record in records))
    return max(common)


def comparison_table(summary: dict[str, Any]) -> str:
    """The summary as a Markdown table, a row for each algorithm."""
    columns = [key for key in next(iter(summary["algorithms"].values())) if key != "microseconds_per_episode"]
    heads = ["algorithm", "told beyond the data", *(column.replace("_", " ") for column in columns), "µs per episode"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(columns) + 1)]
    for name, values in summary["algorithms"].items():
        spreads = [f"{values[key]['mean']:,.0f} ± {values[key]['std']:,.0f}" for key in columns]
        told = algorithm_named(name).told or "nothing"
        lines.append("| " + " | ".join([name, told, *spreads, f"{values['microseconds_per_episode']:.0f}"]) + " |")
    title = f"{summary['environment']}, {summary['episodes']:,} episodes, {summary['seeds']} seeds (mean ± standard deviation)"
    return "\n".join([title, "", *lines, ""])


def write_results(directory: Path, spec: CmdpSpec, summary: dict[str, Any], records: list[RunRecord]) -> list[Path]:
    paths = [directory / "results.csv", directory / "summary.json", directory / "comparison.md"]
    write_file(paths[0], results_csv(spec, records))
    write_file(paths[1], json.dumps(summary, indent=2) + "\n")
    write_file(paths[2], comparison_table(summary))
    return paths


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": pstdev(values), "per_seed": values}
