"""`bench plan --plot`: the time to start an episode against the number of states, with its limits."""

import re
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from safe_psrl_experiments.bench.growth import HORIZON, LAST_JUDGED, MOST_SECONDS, NAME, NUM_ACTIONS, WIDTH
from safe_psrl_experiments.bench.measure import Result

BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREY: Final = "#555555"
PLACE: Final = re.compile(rf"{NAME} S=(\d+) ")


def draw_growth(path: Path, results: list[Result]) -> Path:
    """Medians with bars from the least to the greatest; the figure's format is that of the file's ending."""
    growth = {result: int(found[1]) for result in results if (found := PLACE.match(result.name))}
    listed = {result: states for result, states in growth.items() if "next states" in result.name}
    over_all = {result: states for result, states in growth.items() if result not in listed}
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    axis: Axes = figure.subplots()
    judged = [(states, 1.5 * result.limit / 1e6) for result, states in over_all.items() if states <= LAST_JUDGED]
    axis.fill_between(*zip(*judged, strict=True), 1e-9, color=GREY, alpha=0.1, linewidth=0, label="at most 1.5 times that")
    axis.plot(
        list(over_all.values()),
        [result.limit / 1e6 for result in over_all],
        color=GREY,
        linestyle="--",
        marker=".",
        label="bare gamma draws and BLAS products",
    )
    _draw(axis, over_all, BLUE, "o", "all next states possible")
    _draw(axis, listed, ORANGE, "s", f"{WIDTH} next states listed for each pair")
    axis.axhline(MOST_SECONDS, color=ORANGE, linestyle=":", label=f"bar where they are listed: {MOST_SECONDS:g} s")
    axis.set(xscale="log", yscale="log", xlabel="states", ylabel="time to start an episode")
    axis.set_title(f"Draw a kernel and plan, {NUM_ACTIONS} actions, {HORIZON} steps")
    axis.set_ylim(min(min(r.limit, r.value) for r in over_all) / 2e6, None)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axis.grid(alpha=0.3)
    axis.grid(which="minor", alpha=0.1)
    axis.legend(loc="upper left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _draw(axis: Axes, series: dict[Result, int], colour: str, marker: str, label: str) -> None:
    medians = [result.value / 1e6 for result in series]
    below = [(result.value - min(result.times)) / 1e6 for result in series]
    above = [(max(result.times) - result.value) / 1e6 for result in series]
    axis.errorbar(
        list(series.values()), medians, yerr=(below, above), color=colour, marker=marker, capsize=3, linewidth=2, label=label
    )
