"""Line charts over episodes, as SVG with the style sheet's colour variables: light and dark need no redrawing."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from nicegui import ui

from safe_psrl_console.controls import Text, block

DIGITS: Final = 5  # significant digits sent to the browser
REACH: Final = 0.015  # of the chart's width, within which a mark's text is shown
TIP: Final = "(points) => window.safePsrlChartTip(points)"  # chart_tip.js
MOST_TEXTS: Final = 3  # of marks, in one tooltip
SYMBOLS_BELOW: Final = 3  # a line of fewer points is invisible without them


class Mark(NamedTuple):
    """A vertical line at an episode, with a text for the tooltip."""

    episode: float
    text: str
    colour: str


class Line(NamedTuple):
    """A named line: points as (episode, value)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    kind: str = "solid"
    width: float = 1.5
    steps: bool = False  # a value holds until the next point


class Chart:
    """A card with a title, a line of text and the chart."""

    def __init__(self, title: str, explanation: str, name: str, *, logarithmic: bool = False) -> None:
        self._logarithmic = logarithmic
        with block("section", "card chart", data_chart=name):
            Text("h2", title)
            self.note = Text("p", explanation)
            self._drawing = ui.echart(_options(logarithmic=logarithmic), renderer="svg")
            self._drawing.props["aria-label"] = title
            self._drawing.props["role"] = "img"

    def show(self, lines: Sequence[Line], marks: Sequence[Mark], period: tuple[int, int]) -> None:
        """`period`: the ends of the axis. A logarithmic scale omits what is not above 0."""
        first, *others = [_positive(line) for line in lines] if self._logarithmic else lines
        options = self._drawing.options
        options["series"] = [series_of(first, marks, REACH * (period[1] - period[0])), *map(series_of, others)]
        options["xAxis"]["min"], options["xAxis"]["max"] = period
        self._drawing.props["data-points"] = str(len(first.points))
        self._drawing.props["data-marks"] = str(len(marks))
        self._drawing.update()


def _positive(line: Line) -> Line:
    return line._replace(points=[point for point in line.points if point[1] > 0])


def series_of(line: Line, marks: Sequence[Mark] = (), reach: float = 0.0) -> dict[str, Any]:
    """For ECharts, with `marks` as vertical lines. A mark's text is at the points within `reach` of it, or at the nearest."""
    return {
        "name": line.name,
        "type": "line",
        "data": _items(line.points, marks, reach),
        "step": "end" if line.steps else False,
        "showSymbol": len(line.points) < SYMBOLS_BELOW and line.kind == "solid",
        "symbolSize": 5,
        "lineStyle": {"color": line.colour, "width": line.width, "type": line.kind},
        "itemStyle": {"color": line.colour},
        "emphasis": {"disabled": True},
        "markLine": {
            "silent": True,
            "animation": False,
            "symbol": ["none", "circle"],
            "symbolSize": 6,
            "label": {"show": False},
            "lineStyle": {"type": "solid", "width": 1, "opacity": 0.6},
            "data": [
                {"xAxis": mark.episode, "lineStyle": {"color": mark.colour}, "itemStyle": {"color": mark.colour}}
                for mark in marks
            ],
        },
    }


def _items(points: Sequence[tuple[float, float]], marks: Sequence[Mark], reach: float) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"value": [x, float(f"{y:.{DIGITS}g}")]} for x, y in points]
    for mark in marks:
        distances = [abs(x - mark.episode) for x, _ in points]
        within = max(reach, min(distances, default=0.0))
        for item, distance in zip(items, distances, strict=True):
            if distance <= within and len(item.setdefault("marks", [])) < MOST_TEXTS:
                item["marks"].append(mark.text)
    return items


def _options(*, logarithmic: bool) -> dict[str, Any]:
    return {
        "animation": False,
        "textStyle": {"fontFamily": "inherit", "color": "var(--muted)"},
        "grid": {"left": 8, "right": 16, "top": 40, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "icon": "roundRect",
            "itemHeight": 3,
            "itemWidth": 16,
            "textStyle": {"color": "var(--ink)"},
        },
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "backgroundColor": "var(--surface)",
            "borderColor": "var(--line)",
            "textStyle": {"color": "var(--ink)", "fontSize": 13},
            "axisPointer": {"lineStyle": {"color": "var(--muted)"}, "label": {"show": False}},
            ":formatter": TIP,
        },
        "xAxis": {
            "type": "value",
            "minInterval": 1,
            "axisLine": {"lineStyle": {"color": "var(--line)"}},
            "axisLabel": {"color": "var(--muted)", "hideOverlap": True, "showMaxLabel": False},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "log" if logarithmic else "value",
            "axisLabel": {"color": "var(--muted)", "hideOverlap": True},
            "splitLine": {"lineStyle": {"color": "var(--line)"}},
            "splitNumber": 4,
        },
        "series": [],
    }
