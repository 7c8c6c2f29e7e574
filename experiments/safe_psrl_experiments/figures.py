"""Figures like the paper's: cumulative (Fig. 1) and average (Fig. 2) regret, objective and constraint side by side.

Beside the constraint regret, which is signed, stands the strong violation, which counts only the excess.

Colours are Okabe and Ito's, which colour-blind people can distinguish; each curve also has its own line style.
"""

import io
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from numpy.typing import ArrayLike, NDArray

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_experiments.results import RunRecord, common_episode, per_constraint, unit_of, write_file

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442", "#999999")
STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (2, 2)))
QUANTITIES: Final = {
    "objective regret": "reward below the optimum",
    "constraint regret": "cost above the budget",
    "strong violation": "excess cost",
}
FIGURES: Final = {"cumulative_regret.png": "Cumulative", "average_regret.png": "Average"}

PANEL_WIDTH: Final = 5.5  # inches
CAPTION_WIDTH: Final = 75  # characters that fit under a panel

Curves = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]  # by label: episodes [R], regret [seeds, R]


def draw_figures(
    directory: Path, spec: CmdpSpec, records: list[RunRecord], caption: str, changes: Sequence[int] = ()
) -> list[Path]:
    """Write both figures and return their paths. A line marks each change of the world, a triangle each detection of drift."""
    panels = {
        "objective regret": _curves(records, ["objective_regret"]),
        "constraint regret": _curves(records, per_constraint(spec, "constraint_regret")),
        "strong violation": _curves(records, per_constraint(spec, "strong_violation")),
    }
    paths = [directory / name for name in FIGURES]
    for path, kind in zip(paths, FIGURES.values(), strict=True):
        figure = regret_figure(kind, panels, caption, unit_of(spec))
        for axis in figure.axes:
            _draw_marks(axis, records, changes)
        save_figure(path, figure, caption)
        plt.close(figure)
    return paths


def save_figure(path: Path, figure: Figure, caption: str) -> Path:
    """Write a PNG that carries its caption also as metadata."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150, metadata={"Description": caption})
    write_file(path, image.getvalue())
    return path


def moving_mean(values: ArrayLike, window: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Episodes from 1 on, and the mean of the last `window` values at each, or of as many as there are."""
    sums = np.cumsum(np.concatenate([[0.0], np.asarray(values, np.float64)]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return ends, (sums[ends] - sums[starts]) / (ends - starts)


def _curves(records: list[RunRecord], columns: list[str]) -> Curves:
    """With several constraints, the one that is worst at the moment."""
    last = common_episode(records)
    curves: Curves = {}
    for name in dict.fromkeys(record.algorithm for record in records):
        mine = [[row for row in record.rows if row["episode"] <= last] for record in records if record.algorithm == name]
        shared = sorted(set.intersection(*({row["episode"] for row in rows} for rows in mine)))
        picked = [[row for row in rows if row["episode"] in set(shared)] for rows in mine]
        regret = [[max(row[column] for column in columns) for row in rows] for rows in picked]
        curves[algorithm_named(name).label] = np.array(shared, np.float64), np.array(regret, np.float64)
    return curves


def regret_figure(kind: str, panels: dict[str, Curves], caption: str, unit: str = "episode") -> Figure:
    """The panels of one kind of figure, "Cumulative" or "Average", with the caption below."""
    figure, axes = plt.subplots(1, len(panels), figsize=(PANEL_WIDTH * len(panels), 5.2), layout="constrained")
    for axis, (label, curves) in zip(axes, panels.items(), strict=True):
        for i, (name, (episodes, regret)) in enumerate(curves.items()):
            _draw_curve(axis, i, name, episodes, regret / episodes if kind == "Average" else regret)
        axis.axhline(0.0, color="black", linewidth=0.8)
        how = f"per {unit}" if kind == "Average" else f"summed over {unit}s"
        axis.set(title=f"{kind} {label}", xlabel=unit, ylabel=f"{QUANTITIES[label]} ({how})")
        if kind == "Average":
            axis.set_xscale("log")
        else:
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    wrapped = "\n".join(textwrap.fill(line, CAPTION_WIDTH * len(panels)) for line in caption.splitlines())
    figure.supxlabel(wrapped, fontsize=8.5, color="#444444")
    return figure


def _draw_marks(axis: Axes, records: list[RunRecord], changes: Sequence[int]) -> None:
    """Triangles along the axis of episodes have the colour of their algorithm's curve."""
    for change in changes:
        axis.axvline(change, color="black", linestyle=":", linewidth=1)
    for i, name in enumerate(dict.fromkeys(record.algorithm for record in records)):
        for rows in (record.rows for record in records if record.algorithm == name):
            detected = [after["episode"] for row, after in pairwise(rows) if after["detections"] > row["detections"]]
            colour = COLOURS[i % len(COLOURS)]
            axis.plot(detected, [0.02] * len(detected), "^", color=colour, alpha=0.6, transform=axis.get_xaxis_transform())


def _draw_curve(axis: Axes, i: int, name: str, episodes: NDArray[np.float64], regret: NDArray[np.float64]) -> None:
    """The mean over seeds, with a band from the least to the greatest."""
    style: Any = STYLES[i % len(STYLES)]
    colour = COLOURS[i % len(COLOURS)]
    axis.plot(episodes, regret.mean(axis=0), color=colour, linestyle=style, linewidth=2, label=name)
    axis.fill_between(episodes, regret.min(axis=0), regret.max(axis=0), color=colour, alpha=0.2, linewidth=0)
