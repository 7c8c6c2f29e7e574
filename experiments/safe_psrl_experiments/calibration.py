"""Calibration of `certified`: how many episodes are above their budget, against 1 - confidence.

The confidence is a statement about the posterior, which is right on average over kernels drawn from the prior. So kernels are
drawn from it, the same ones for every confidence, and the share of episodes whose true expected cost is above the budget is
averaged over them. Episodes of one kernel depend on each other; the standard error is therefore over kernels.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from safe_psrl.errors import SpecError
from safe_psrl.problem.options import CERTIFIED
from safe_psrl_experiments.experiment import CHECKPOINTS, Experiment
from safe_psrl_experiments.figures import COLOURS, save_figure
from safe_psrl_experiments.results import RunRecord, write_file
from safe_psrl_experiments.runs import Report, run_jobs
from safe_psrl_testbed.scenario import PRIOR

CONFIDENCES: Final = (0.9, 0.95, 0.98, 0.99)
RESULT: Final = "calibration.json"
TABLE: Final = "calibration.md"
FIGURE: Final = "calibration.png"


@dataclass(frozen=True)
class Calibration:
    """What to run: `kernels` drawn from the prior of `environment`, each with every confidence.

    Raises `SpecError` for whatever cannot be run, before anything is.
    """

    environment: str
    confidences: Sequence[float] = CONFIDENCES
    kernels: int = 200
    episodes: int = 2_000

    def __post_init__(self) -> None:
        if self.kernels < 2:
            raise SpecError("kernels", self.kernels, "must be at least 2, for a standard error")
        if not self.confidences:
            raise SpecError("confidences", [], "must have at least one")
        first, *_ = self.experiments()
        if first.spec.num_constraints > 1:
            raise SpecError("environment", self.environment, "has several constraints; calibrate one with a single constraint")

    @property
    def total_episodes(self) -> int:
        return self.episodes * self.kernels * len(self.confidences)

    def experiments(self) -> list[Experiment]:
        """One for each confidence, in which the seeds are the kernels."""
        name = self.environment if self.environment.startswith(PRIOR) else PRIOR + self.environment
        return [
            Experiment(name, [CERTIFIED], self.episodes, self.kernels, {CERTIFIED: {"confidence": confidence}})
            for confidence in self.confidences
        ]


@dataclass(frozen=True)
class Outcome:
    summary: dict[str, Any]
    files: list[Path]


def run_calibration(calibration: Calibration, directory: Path, processes: int, report: Report) -> Outcome | None:
    """Run, and write the results of all kernels that were finished; None if there are fewer than two of them.

    What was done is kept under `directory` until all is done, so that the same calibration continues where it was stopped.
    """
    checkpoints = directory / CHECKPOINTS
    levels: list[dict[str, Any]] = []
    interrupted = False
    for confidence, experiment in zip(calibration.confidences, calibration.experiments(), strict=True):
        records = [record for record in run_jobs(experiment.jobs(), processes, report, checkpoints) if record.finished]
        if len(records) > 1:
            levels.append(level_of(confidence, records))
        interrupted = len(records) < calibration.kernels
        if interrupted:
            break
    if not levels:
        return None
    summary = {
        "environment": calibration.environment,
        "kernels": calibration.kernels,
        "episodes": calibration.episodes,
        "interrupted": interrupted,
        "levels": levels,
    }
    if not interrupted:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return Outcome(summary, write_calibration(directory, summary))


def level_of(confidence: float, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The share of episodes above the budget at one confidence, over two kernels or more.

    It is `within` if it is at most 1 - confidence, up to its standard error.
    """
    ends = [record.rows[-1] for record in records]
    shares = [end["violating_episodes"] / end["episode"] for end in ends]
    share, error, allowed = fmean(shares), stdev(shares) / len(shares) ** 0.5, round(1.0 - confidence, 12)
    return {
        "confidence": confidence,
        "allowed": allowed,
        "share": share,
        "standard_error": error,
        "within": share <= allowed + error,
        "kernels": len(shares),
        "kernels_above": sum(share > 0 for share in shares),
        "strong_violation_per_episode": fmean(end["strong_violation"] / end["episode"] for end in ends),
        "objective_regret_per_episode": fmean(end["objective_regret"] / end["episode"] for end in ends),
        "share_per_kernel": shares,
    }


def write_calibration(directory: Path, summary: dict[str, Any]) -> list[Path]:
    paths = [directory / name for name in (RESULT, TABLE, FIGURE)]
    write_file(paths[0], json.dumps(summary, indent=2) + "\n")
    write_file(paths[1], calibration_table(summary))
    save_figure(paths[2], calibration_figure(summary), caption_of(summary))
    return paths


def calibration_table(summary: dict[str, Any]) -> str:
    """The levels as a Markdown table."""
    heads = ("confidence", "1 - confidence", "episodes above the budget", "kernels with any", "strong violation per episode")
    lines = [caption_of(summary), "", "| " + " | ".join(heads) + " | |", "|" + "---:|" * len(heads) + "---|"]
    for level in summary["levels"]:
        cells = [
            f"{level['confidence']:g}",
            f"{level['allowed']:.2%}",
            f"{level['share']:.2%} ± {level['standard_error']:.2%}",
            f"{level['kernels_above']} of {level['kernels']}",
            f"{level['strong_violation_per_episode']:.2g}",
            "within" if level["within"] else "**above**",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def calibration_figure(summary: dict[str, Any]) -> Figure:
    """The observed share against the allowed one, with standard errors; below the diagonal the confidence is kept."""
    levels = summary["levels"]
    allowed, shares = [level["allowed"] for level in levels], [level["share"] for level in levels]
    errors = [level["standard_error"] for level in levels]
    figure = Figure(figsize=(7, 5.2), layout="constrained")
    axis = figure.subplots()
    most = 1.15 * max(*allowed, *(share + error for share, error in zip(shares, errors, strict=True)))
    axis.plot([0, most], [0, most], color="black", linewidth=1, linestyle="--", label="share = 1 - confidence")
    axis.fill_between([0, most], [0, most], color=COLOURS[2], alpha=0.12, linewidth=0, label="the confidence is kept")
    axis.errorbar(
        allowed,
        shares,
        yerr=errors,
        color=COLOURS[0],
        marker="o",
        capsize=4,
        linestyle="none",
        label="observed, standard error",
    )
    for level in levels:
        axis.annotate(
            f"{level['confidence']:g}",
            (level["allowed"], level["share"]),
            textcoords="offset points",
            xytext=(8, -4),
            fontsize=9,
        )
    axis.set(xlim=(0, most), ylim=(0, most), xlabel="1 - confidence", ylabel="episodes above the budget")
    axis.set_title("Calibration of certified plans")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left")
    figure.supxlabel(caption_of(summary), fontsize=8.5, color="#444444")
    return figure


def caption_of(summary: dict[str, Any]) -> str:
    stopped = " (stopped early)" if summary["interrupted"] else ""
    return (
        f"{summary['environment']}: {summary['kernels']} kernels drawn from the prior{stopped}, "
        f"{summary['episodes']:,} episodes of each"
    )
