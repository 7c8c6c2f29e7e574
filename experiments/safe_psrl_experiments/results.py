"""What runs record, at log-spaced episodes, and the files made of it: `results.csv`, `summary.json`, `comparison.md`."""

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import Run, algorithm_named

ROWS_PER_RUN = 200
PER_CONSTRAINT = ("constraint_regret", "constraint_regret_max", "strong_violation", "dual_variable", "pessimism")


@dataclass(frozen=True)
class RunRecord:
    """One algorithm with one seed: what it recorded, how long it took, and the optimum that it is measured against."""

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


def recorded_episodes(episodes: int, changes: Sequence[int] = ()) -> list[int]:
    """About `ROWS_PER_RUN` episodes from 1 to `episodes`, evenly spaced in their logarithm; as many after each change."""
    recorded = {episodes, *changes}
    for start in (0, *changes):
        rest = episodes - start
        recorded |= {start + k for k in np.rint(np.geomspace(1, rest, min(ROWS_PER_RUN, rest))).astype(int).tolist()}
    return sorted(recorded)


def columns(spec: CmdpSpec) -> list[str]:
    """The columns of a row; with several constraints, those about one carry its name."""
    regret, regret_max, strong, dual, pessimism = (per_constraint(spec, column) for column in PER_CONSTRAINT)
    sums = ["objective_regret", *regret, *regret_max, *strong, "priced_regret", "violating_episodes", "detections"]
    return ["episode", *sums, *dual, *pessimism]


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
        float(ledger.priced_regret[0]),
        int(ledger.violating_episodes[0]),
        int(ledger.detections[0]),
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


def unit_of(spec: CmdpSpec) -> str:
    """What is counted: in a continuing task, steps take the place of episodes in every file."""
    return "step" if spec.is_continuing else "episode"


def in_units(spec: CmdpSpec, summary: Any) -> Any:
    """The summary with the names of its unit."""
    if isinstance(summary, dict):
        return {key.replace("episode", unit_of(spec)): in_units(spec, value) for key, value in summary.items()}
    return [in_units(spec, value) for value in summary] if isinstance(summary, list) else summary


def results_csv(spec: CmdpSpec, records: list[RunRecord]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["algorithm", "seed", *(column.replace("episode", unit_of(spec)) for column in columns(spec))])
    for record in records:
        writer.writerows([record.algorithm, record.seed, *row.values()] for row in record.rows)
    return text.getvalue()


def summary_of(
    spec: CmdpSpec,
    environment: str,
    requested: int,
    records: list[RunRecord],
    num_jobs: int | None = None,
    changes: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """The end of each run. If runs were cut short, all are compared at the last episode that every one of them recorded.

    `num_jobs` runs were requested; fewer records mean that some never started. `changes` of the world are by the number of
    episodes before them; what was measured before and since is of the last one that every run has seen.
    """
    last = common_episode(records)
    change = max((after for after, _ in changes if after < last), default=None)
    algorithms: dict[str, Any] = {}
    for name in dict.fromkeys(record.algorithm for record in records):
        mine = [record for record in records if record.algorithm == name]
        ends = [next(row for row in record.rows if row["episode"] == last) for record in mine]
        measured = [
            "objective_regret",
            *per_constraint(spec, "constraint_regret"),
            *per_constraint(spec, "constraint_regret_max"),
            *per_constraint(spec, "strong_violation"),
            "priced_regret",
            "violating_episodes",
            "detections",
        ]
        algorithms[name] = {column: _spread([end[column] for end in ends]) for column in measured}
        if change is not None:
            algorithms[name] |= _around(change, [column for column in measured if "_max" not in column], mine, ends)
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
        **({"changes": [{"after_episodes": after, "environment": name} for after, name in changes]} if changes else {}),
        "algorithms": algorithms,
    }


def _around(change: int, measured: list[str], records: list[RunRecord], ends: list[dict[str, float]]) -> dict[str, Any]:
    """What was measured before a change of the world, and since. A delay is in episodes; rows are its resolution."""
    starts = [next(row for row in record.rows if row["episode"] == change) for record in records]
    delays = [_first_detection(record, start) for record, start in zip(records, starts, strict=True)]
    middle = median(math.inf if delay is None else delay for delay in delays)
    since = {
        column: _spread([end[column] - start[column] for end, start in zip(ends, starts, strict=True)]) for column in measured
    }
    return {
        "before_change": {"episodes": change, **{column: _spread([start[column] for start in starts]) for column in measured}},
        "since_change": {
            "episodes": int(ends[0]["episode"]) - change,
            **since,
            "detection_delay": {"median": middle if math.isfinite(middle) else None, "per_seed": delays},
        },
    }


def _first_detection(record: RunRecord, start: dict[str, float]) -> float | None:
    later = (row for row in record.rows if row["episode"] > start["episode"] and row["detections"] > start["detections"])
    return next((row["episode"] - start["episode"] for row in later), None)


def common_episode(records: list[RunRecord]) -> int:
    """The greatest episode that every run recorded."""
    common = set.intersection(*({int(row["episode"]) for row in record.rows} for record in records))
    return max(common)


def comparison_table(summary: dict[str, Any]) -> str:
    """The summary as a Markdown table, a row for each algorithm."""
    others = {"microseconds_per_episode", "detections", "before_change", "since_change"}
    columns = [key for key in next(iter(summary["algorithms"].values())) if key not in others]
    heads = ["algorithm", "told beyond the data", *(column.replace("_", " ") for column in columns), "µs per episode"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(columns) + 1)]
    for name, values in summary["algorithms"].items():
        spreads = [f"{values[key]['mean']:,.0f} ± {values[key]['std']:,.0f}" for key in columns]
        told = algorithm_named(name).told or "nothing"
        lines.append("| " + " | ".join([name, told, *spreads, f"{values['microseconds_per_episode']:.0f}"]) + " |")
    title = f"{summary['environment']}, {summary['episodes']:,} episodes, {summary['seeds']} seeds (mean ± standard deviation)"
    return "\n".join([title, "", *lines, "", *_change_lines(summary)])


def _change_lines(summary: dict[str, Any]) -> list[str]:
    """A table with two rows for each algorithm, before and since the last change of the world; empty without one."""
    compared = {name: values for name, values in summary["algorithms"].items() if "since_change" in values}
    if not compared:
        return []
    first = next(iter(compared.values()))["before_change"]
    columns = [key for key in first if key != "episodes"]
    heads = ["algorithm", "", "episodes", *(column.replace("_", " ") for column in columns), "median detection delay"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(columns) + 2)]
    for name, values in compared.items():
        for key in ("before_change", "since_change"):
            part = values[key]
            spreads = [f"{part[column]['mean']:,.0f} ± {part[column]['std']:,.0f}" for column in columns]
            delay = part.get("detection_delay", {}).get("median")
            shown = "" if delay is None else f"{delay:,.0f}"
            lines.append(f"| {name} | {key.split('_')[0]} | {part['episodes']:,} | " + " | ".join([*spreads, shown]) + " |")
    change = next(one for one in summary["changes"] if one["after_episodes"] == first["episodes"])
    title = f"Before the change to {change['environment']} after {change['after_episodes']:,} episodes, and since"
    return [title, "", *lines, ""]


def write_results(directory: Path, spec: CmdpSpec, summary: dict[str, Any], records: list[RunRecord]) -> list[Path]:
    paths = [directory / "results.csv", directory / "summary.json", directory / "comparison.md"]
    write_file(paths[0], results_csv(spec, records))
    write_file(paths[1], json.dumps(in_units(spec, summary), indent=2) + "\n")
    write_file(paths[2], comparison_table(summary).replace("episode", unit_of(spec)))
    return paths


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": pstdev(values), "per_seed": values}
