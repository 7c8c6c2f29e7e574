"""The four charts of an agent: cost, constraint regret, reward, and pessimism, with the dual variable if the method has one.

Lines over episodes, as SVG with the style sheet's colour variables: light and dark need no redrawing.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from safe_psrl_console.controls import Choice, Text, block, button
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.history import Interval, Point, intervals

CERTIFIED: Final = "certified"  # the method without a dual variable
ENOUGH: Final = 90  # intervals in a chart
FIRST: Final = "var(--line-a)"
SECOND: Final = "var(--line-b)"
DIGITS: Final = 5  # significant digits sent to the browser
MARGIN: Final = 12  # pixels
LETTER: Final = 8  # pixels per character of a level's name


class AgentCharts:
    """The charts of one constraint at a time; constraint and period are chosen above them."""

    def __init__(self, agent: WatchedAgent) -> None:
        self._agent = agent
        self._constraint = 0
        self._whole = False
        self._with_bound = False
        self._certified = agent.status.method == CERTIFIED
        with block("div", "tools"):
            Text("h2", "Learning, by episode")
            names = [one.name for one in agent.status.constraints]
            if len(names) > 1:
                Choice("Constraint", names, self._choose_constraint)
            Choice("Period", ["Last minutes", "Since the console started"], self._choose_period)
        with block("div", "charts"):
            self._cost = Chart("Cost per episode", "", "cost")
            self._regret = Chart("Constraint regret", "", "regret")
            if not self._certified:  # the theorem is about the paper's methods
                with self._regret.foot:
                    self._bound = button("Draw the theorem's bound", self._turn_bound, "plain")
            self._reward = Chart("Reward per episode", "Mean of the episodes between two points.", "reward")
            self._dual = Chart("Pessimism" if self._certified else "Dual variable and pessimism", "", "dual")
        self.show(agent)

    def show(self, agent: WatchedAgent) -> None:
        self._agent = agent
        points = agent.history.whole() if self._whole else list(agent.history.thinned(ENOUGH))
        seen = [point for point in points if point.completed]
        parts = list(intervals(seen, agent.budgets))
        self._show_cost(parts)
        self._show_regret(seen)
        self._reward.show([line("reward", [(part.end.completed, part.reward) for part in parts])])
        self._show_dual(seen)

    def _show_cost(self, parts: Sequence[Interval]) -> None:
        i, status = self._constraint, self._agent.status.constraints[self._constraint]
        drawn = line(status.name, [(part.end.completed, part.costs[i]) for part in parts])
        highest = max([status.cost_budget, *(part.costs[i] for part in parts)])
        level = f"budget {status.cost_budget:g}"
        self._cost.show([with_level(drawn, status.cost_budget, level)], up_to=round_above(highest))
        self._cost.note.set_text(
            f"Mean of the episodes between two points. All episodes: {status.mean_cost:.3f}; "
            f"the plan expects {status.predicted_cost:.3f}."
        )

    def _show_regret(self, points: Sequence[Point]) -> None:
        i, status = self._constraint, self._agent.status.constraints[self._constraint]
        series = [with_level(line("constraint regret", [(p.completed, p.regrets[i]) for p in points]), 0, "")]
        if self._with_bound:
            bounds = [(p.completed, p.regret_bounds[i]) for p in points]
            series.append(line("the theorem's bound (right)", bounds, SECOND, axis=1, dashed=True))
        self._regret.show(series, second_axis=" " if self._with_bound else "")
        bound = "" if self._certified else f" The theorem's bound: {status.constraint_regret_bound:,.4g}."
        self._regret.note.set_text(
            f"The sum of cost less budget. Now {status.constraint_regret:,.1f}: below zero, budget is unspent. "
            f"Never above {status.constraint_regret_max:,.1f}.{bound}"
        )

    def _show_dual(self, points: Sequence[Point]) -> None:
        i, status = self._constraint, self._agent.status.constraints[self._constraint]
        if self._certified:
            self._dual.show([line("pessimism", [(p.completed, p.pessimism[i]) for p in points], SECOND)])
            self._dual.note.set_text(
                f"The certified cost less the cost expected under the posterior mean. Now {status.pessimism:,.4g}."
            )
            return
        dual = line("dual variable", [(p.completed, p.duals[i]) for p in points], FIRST)
        pessimism = line("pessimism (right)", [(p.completed, p.pessimism[i]) for p in points], SECOND, axis=1)
        self._dual.show([dual, pessimism], second_axis=" ")
        self._dual.note.set_text(
            f"Now {status.dual_variable:,.4g} and {status.pessimism:,.4g}; "
            f"the price of a unit of cost is {status.cost_price:,.4g}."
        )

    def _choose_constraint(self, i: int) -> None:
        self._constraint = i
        self.show(self._agent)

    def _choose_period(self, i: int) -> None:
        self._whole = i == 1
        self.show(self._agent)

    def _turn_bound(self) -> None:
        self._with_bound = not self._with_bound
        self._bound.set_text("Hide the theorem's bound" if self._with_bound else "Draw the theorem's bound")
        self.show(self._agent)


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
