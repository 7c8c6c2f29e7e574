"""Line charts over episodes, as SVG with the style sheet's colour variables: light and dark need no redrawing."""

import math
from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from safe_psrl_console.controls import Text, block

FIRST: Final = "var(--line-a)"
SECOND: Final = "var(--line-b)"
DIGITS: Final = 5  # significant digits sent to the browser
MARGIN: Final = 12  # pixels
LETTER: Final = 8  # pixels per character of a level's name


class Chart:
    """A card with a title, a line of text and the chart."""

    def __init__(self, title: str, explanation: str, name: str) -> None:
        with block("section", "card chart", data_chart=name):
            Text("h2", title)
            self.note = Text("p", explanation)
            self._drawing = ui.echart(_options(), renderer="svg")
            self._drawing.props["aria-label"] = title
            self._drawing.props["role"] = "img"
            self.foot = block("div", "foot")

    def show(self, series: Sequence[dict[str, Any]], *, second_axis: str = "", up_to: float | None = None) -> None:
        """`up_to`: the end of the scale, which is otherwise what the lines need."""
        options = self._drawing.options
        options["series"] = list(series)
        options["yAxis"] = [_axis(), _axis(second_axis)] if second_axis else [_axis()]
        options["yAxis"][0]["max"] = up_to
        options["legend"]["show"] = len(series) > 1
        options["grid"]["top"] = 34 if len(series) > 1 else 16
        options["grid"]["right"] = MARGIN + LETTER * max((len(one.get("levelName", "")) for one in series), default=0)
        self._drawing.props["data-points"] = str(len(series[0]["data"]) if series else 0)
        self._drawing.update()


def line(
    name: str, points: Sequence[tuple[float, float]], colour: str = FIRST, *, axis: int = 0, dashed: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "type": "line",
        "data": [[x, float(f"{y:.{DIGITS}g}")] for x, y in points],
        "yAxisIndex": axis,
        "showSymbol": len(points) < 3,
        "symbolSize": 5,
        "lineStyle": {"color": colour, "width": 2, "type": "dashed" if dashed else "solid"},
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
    }


def with_level(series: dict[str, Any], level: float, name: str) -> dict[str, Any]:
    """`series` with a dashed horizontal line, such as a budget."""
    label = {"formatter": name, "position": "end", "color": "var(--over)", "fontWeight": 600}
    style = {"color": "var(--over)", "type": "dashed", "width": 1.5}
    mark = {
        "silent": True,
        "symbol": "none",
        "data": [{"yAxis": level}],
        "label": label,
        "lineStyle": style,
        "animation": False,
    }
    return series | {"markLine": mark, "levelName": name}


def round_above(value: float) -> float:
    """A round number a little above `value`, for the end of an axis."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step for step in (1.2, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10, 12) if step * unit >= 1.08 * value) * unit


def _options() -> dict[str, Any]:
    return {
        "animation": False,
        "textStyle": {"fontFamily": "inherit", "color": "var(--muted)"},
        "grid": {"left": 8, "right": 12, "top": 16, "bottom": 4, "containLabel": True},
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
            "backgroundColor": "var(--surface)",
            "borderColor": "var(--line)",
            "textStyle": {"color": "var(--ink)", "fontSize": 13},
            "axisPointer": {"lineStyle": {"color": "var(--muted)"}, "label": {"show": False}},
        },
        "xAxis": {
            "type": "value",
            "min": "dataMin",
            "max": "dataMax",
            "minInterval": 1,
            "axisLine": {"lineStyle": {"color": "var(--line)"}},
            "axisLabel": {"color": "var(--muted)", "hideOverlap": True, "showMinLabel": False, "showMaxLabel": False},
            "splitLine": {"show": False},
        },
        "yAxis": [_axis()],
        "series": [],
    }


def _axis(name: str = "") -> dict[str, Any]:
    return {
        "type": "value",
        "name": name,
        "scale": False,
        "axisLabel": {"color": "var(--muted)"},
        "nameTextStyle": {"color": "var(--muted)", "align": "right"},
        "splitLine": {"show": not name, "lineStyle": {"color": "var(--line)"}},
        "splitNumber": 4,
    }
