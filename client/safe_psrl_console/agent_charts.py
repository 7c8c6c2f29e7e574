"""The four charts of an agent: cost, constraint regret, reward, and the dual variable with its pessimism."""

from collections.abc import Sequence
from typing import Final

from safe_psrl_console.charts import FIRST, SECOND, Chart, line, round_above, with_level
from safe_psrl_console.controls import Choice, Text, block, button
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.history import Interval, Point, intervals

ENOUGH: Final = 90  # intervals in a chart


class AgentCharts:
    """The charts of one constraint at a time; constraint and period are chosen above them."""

    def __init__(self, agent: WatchedAgent) -> None:
        self._agent = agent
        self._constraint = 0
        self._whole = False
        self._with_bound = False
        with block("div", "tools"):
            Text("h2", "Learning, by episode")
            names = [one.name for one in agent.status.constraints]
            if len(names) > 1:
                Choice("Constraint", names, self._choose_constraint)
            Choice("Period", ["Last minutes", "Since the console started"], self._choose_period)
        with block("div", "charts"):
            self._cost = Chart("Cost per episode", "", "cost")
            self._regret = Chart("Constraint regret", "", "regret")
            with self._regret.foot:
                self._bound = button("Draw the theorem's bound", self._turn_bound, "plain")
            self._reward = Chart("Reward per episode", "Mean of the episodes between two points.", "reward")
            self._dual = Chart("Dual variable and pessimism", "", "dual")
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
        self._regret.note.set_text(
            f"The sum of cost less budget. Now {status.constraint_regret:,.1f}: below zero is budget unspent. "
            f"Never above {status.constraint_regret_max:,.1f}. The theorem's bound: {status.constraint_regret_bound:,.4g}."
        )

    def _show_dual(self, points: Sequence[Point]) -> None:
        i, status = self._constraint, self._agent.status.constraints[self._constraint]
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
