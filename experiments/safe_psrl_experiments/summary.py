"""From records to files: `results.csv` and `summary.json`. Each file is complete or not there."""

import csv
import io
import json
import os
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.records import RunRecord, columns, per_constraint


def write_file(path: Path, text: str) -> None:
    """Replace `path` in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
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

    `num_jobs` runs were asked for; fewer records mean that some never began.
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
