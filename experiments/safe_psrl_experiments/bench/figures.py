"""The figures of `bench plan --plot` and `bench serve --plot`."""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from safe_psrl_experiments.bench.measure import Result
from safe_psrl_experiments.bench.plan import (
    BEGIN,
    HORIZON,
    LAST_JUDGED,
    MOST_RATIO,
    MOST_SECONDS,
    NUM_ACTIONS,
    START,
    START_CERTIFIED,
    WIDTH,
)

BLUE: Final = "#0072B2"
LIGHT_BLUE: Final = "#56B4E9"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
GREY: Final = "#555555"
LISTED: Final = " next states"  # how the names of results of listed next states end

Series = list[tuple[int, Result]]  # states, and what was measured there


def draw_growth(path: Path, results: list[Result]) -> Path:
    """The time to start an episode against the number of states, with its limits.

    Medians with bars from the least to the greatest; the figure's format is that of the file's ending.
    """
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    axis: Axes = figure.subplots()
    begin, start = _series(results, BEGIN, listed=False), _series(results, START, listed=False)
    _draw_limit(axis, begin)
    _draw(axis, start, LIGHT_BLUE, "v", "all next states possible: the learner's whole step")
    _draw(axis, begin, BLUE, "o", "all next states possible: draw and plan")
    _draw(axis, _series(results, START, listed=True), ORANGE, "s", f"{WIDTH} next states listed: the learner's whole step")
    for listed, style in ((False, "^"), (True, "D")):
        where = f"{WIDTH} next states listed" if listed else "all next states possible"
        _draw(axis, _series(results, START_CERTIFIED, listed=listed), GREEN, style, f"{where}: certified, the whole step")
    axis.axhline(MOST_SECONDS, color=ORANGE, linestyle=":", label=f"bar where next states are listed: {MOST_SECONDS:g} s")
    axis.set(xscale="log", yscale="log", xlabel="states", ylabel="time to start an episode")
    axis.set_title(f"Starting an episode of {HORIZON} steps with {NUM_ACTIONS} actions")
    axis.set_ylim(min(min(result.limit, result.value) for _, result in begin) / 2e6, None)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axis.grid(alpha=0.3)
    axis.grid(which="minor", alpha=0.1)
    axis.legend(loc="upper left", fontsize=8.5)
    return _save(path, figure)


def _series(results: list[Result], what: str, *, listed: bool) -> Series:
    mine = [result for result in results if result.name.startswith(f"{what} S=") and result.name.endswith(LISTED) == listed]
    return [(int(result.name.removeprefix(f"{what} S=").split()[0]), result) for result in mine]


def _draw_limit(axis: Axes, series: Series) -> None:
    """The bare work, and above it, as far as it is judged, what it may take."""
    states, limits = [place for place, _ in series], [result.limit / 1e6 for _, result in series]
    judged = [place for place in states if place <= LAST_JUDGED]
    most = [MOST_RATIO * limit for limit in limits[: len(judged)]]
    axis.fill_between(
        judged,
        limits[: len(judged)],
        most,
        color=GREY,
        alpha=0.25,
        linewidth=0,
        label=f"at most {MOST_RATIO:g} times bare draws and products",
    )
    axis.plot(states, limits, color=GREY, linestyle="--", label="bare gamma draws and BLAS products")


def _draw(axis: Axes, series: Series, colour: str, marker: str, label: str) -> None:
    medians = [result.value / 1e6 for _, result in series]
    below = [(result.value - min(result.times)) / 1e6 for _, result in series]
    above = [(max(result.times) - result.value) / 1e6 for _, result in series]
    states = [place for place, _ in series]
    axis.errorbar(states, medians, yerr=(below, above), color=colour, marker=marker, capsize=3, markersize=5, label=label)


def draw_serve(path: Path, results: list[Result]) -> Path:
    """Each result as a part of its bar; beyond 1 the bar is met."""
    judged = [result for result in results if result.bar is not None][::-1]
    parts = [_part(result, result.ratio) for result in judged]
    turns = [
        [_part(result, value / limit) for value, limit in zip(result.times, result.limit_times, strict=True)]
        for result in judged
    ]
    spread = [
        [part - min(seen) for part, seen in zip(parts, turns, strict=True)],
        [max(seen) - part for part, seen in zip(parts, turns, strict=True)],
    ]
    figure = Figure(figsize=(8, 0.55 * len(judged) + 1.4), layout="constrained")
    axis = figure.subplots()
    colours = [BLUE if result.ok else ORANGE for result in judged]
    axis.barh([result.name for result in judged], parts, xerr=spread, color=colours, ecolor="#555555", capsize=3, height=0.6)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set(xlabel="speed as a part of the bar: right of the line it is met", title="The service against a bare gRPC echo")
    axis.set_xlim(0, None)
    axis.grid(axis="x", alpha=0.3)
    return _save(path, figure)


def _part(result: Result, ratio: float) -> float:
    """How much of its bar a ratio is; of latencies, the other way round."""
    sign, number = str(result.bar).split()
    return float(number) / ratio if sign == "<=" else ratio / float(number)


def _save(path: Path, figure: Figure) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
