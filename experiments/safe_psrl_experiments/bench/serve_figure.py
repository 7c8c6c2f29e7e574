"""`bench serve --plot`: each figure as a part of its bar; beyond 1 the bar is met."""

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from safe_psrl_experiments.bench.measure import Result

BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"


def draw_serve(path: Path, results: list[Result]) -> Path:
    judged = [result for result in results if result.bar is not None][::-1]
    parts = [_part(result, result.ratio) for result in judged]
    turns = [[_part(result, value / limit) for value, limit in _pairs(result)] for result in judged]
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _pairs(result: Result) -> list[tuple[float, float]]:
    return list(zip(result.times, result.limit_times, strict=True))


def _part(result: Result, ratio: float) -> float:
    """How much of its bar a ratio is; of latencies, the other way round."""
    sign, number = str(result.bar).split()
    return float(number) / ratio if sign == "<=" else ratio / float(number)
