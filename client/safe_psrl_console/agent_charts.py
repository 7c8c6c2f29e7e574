"""The charts of an agent, from the service's history: cost, constraint regret, reward, dual variable, drift statistic."""

from collections.abc import Sequence
from itertools import accumulate
from textwrap import shorten
from typing import Final

from safe_psrl_client.documents import PESSIMISM_COEFFICIENTS
from safe_psrl_console.agent_history import MOST_POINTS, AgentHistory, Entry, thinned
from safe_psrl_console.budget_status import rate_of, unit_of
from safe_psrl_console.charts import Chart, Line, Mark
from safe_psrl_console.controls import Choice, Text, block
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_proto.v1 import admin_pb2

OBSERVED: Final = "var(--line-a)"
PREDICTED: Final = "var(--line-b)"
CERTIFIED: Final = "var(--line-c)"
LIMIT: Final = "var(--over)"
MARKS: Final = {
    "updated": "var(--accent)",
    "paused": "var(--near)",
    "guarded": "var(--near)",
    "resumed": "var(--near)",
    "imported": "var(--muted)",
    "drift": "var(--over)",
}
LONGEST_MARK: Final = 200
DONE: Final = {
    "alert": "A detection is reported; nothing is forgotten.",
    "forget": "After a detection, what is older than the short memory is forgotten.",
    "pause": "A detection pauses the agent.",
}

Points = Sequence[admin_pb2.HistoryPoint]


class AgentCharts:
    """The charts of one constraint at a time; constraint and period are chosen above them."""

    def __init__(self, agent: WatchedAgent, history: AgentHistory) -> None:
        self._agent, self._history = agent, history
        self._constraint = 0
        self._latest_only = False
        self._episodes = 0  # of a point that is drawn
        self._unit, rate = unit_of(agent.status), rate_of(agent.status)
        has_dual, has_drift = agent.status.method in PESSIMISM_COEFFICIENTS, agent.status.HasField("drift_statistic")
        with block("div", "tools"):
            Text("h2", f"Learning, by {self._unit}")
            names = [one.name for one in agent.status.constraints]
            if len(names) > 1:
                Choice("Constraint", names, self._choose_constraint)
            Choice("Period", [f"All {self._unit}s", "Latest"], self._choose_period)
        with block("div", "charts"):
            self._cost = Chart(f"Cost per {rate}", "", "cost")
            # Epochs differ in length, so their points do not give the sum of their steps' costs.
            self._regret = None if agent.status.continuing else Chart("Constraint regret", "", "regret")
            self._reward = Chart(f"Reward per {rate}", f"Mean per {rate}, and what the plans predicted.", "reward")
            self._dual = Chart("Dual variable", "", "dual") if has_dual else None
            self._drift = Chart("Drift statistic", "", "drift", logarithmic=True) if has_drift else None

    def show(self, agent: WatchedAgent) -> None:
        """Draw the history, of all episodes or of its latest points."""
        self._agent = agent
        everything = self._history.points
        earlier = everything[:-MOST_POINTS] if self._latest_only else []
        points = thinned(everything[len(earlier) :])
        self._episodes = max((point.episodes for point in points), default=0)
        period = (points[0].episode if earlier else 0, max(agent.status.episode, 1))
        marks = [_mark(entry) for entry in self._history.entries if entry.kind in MARKS and entry.episode >= period[0]]
        self._cost.show(self._cost_lines(points, period[1]), marks, period)
        if self._regret:
            spent = sum(_regret(point, self._constraint) for point in earlier)
            self._regret.show([self._regret_line(points, spent)], marks, period)
        self._reward.show(_reward_lines(points), marks, period)
        if self._dual:
            self._dual.show([self._dual_line(points)], marks, period)
        if self._drift:
            limit = agent.status.drift_alarm
            statistic = Line("statistic", [(point.episode, point.drift_statistic) for point in points], OBSERVED, width=2)
            ends = [(period[0], limit), (period[1], limit)]
            self._drift.show([statistic, Line(f"limit {figure(limit)}", ends, LIMIT, "dashed")], marks, period)
        self.show_notes(agent)

    def _cost_lines(self, points: Points, last_episode: int) -> list[Line]:
        """Observed, budget, predicted and, if there is one, certified cost. The last budget is that of the next episode."""
        i, budget = self._constraint, self._agent.status.constraints[self._constraint].cost_budget
        each = [(point.episode, point.constraints[i]) for point in points]
        budgets = [*((x, one.cost_budget) for x, one in each), (last_episode, budget)]
        certified = [(x, one.certified_cost) for x, one in each if one.HasField("certified_cost")]
        return [
            Line("cost", [(x, one.cost) for x, one in each], OBSERVED, width=2),
            Line("predicted", [(x, one.predicted_cost) for x, one in each], PREDICTED),
            *([Line("certified", certified, CERTIFIED)] if certified else []),
            Line(f"budget {budget:g}", budgets, LIMIT, "dashed", steps=True),  # drawn last, as it hides least
        ]

    def _regret_line(self, points: Points, spent: float) -> Line:
        """`spent`: the regret before the first of `points`."""
        sums = accumulate((_regret(point, self._constraint) for point in points), initial=spent)
        next(sums)
        ends = [point.episode + point.episodes - 1 for point in points]
        return Line("constraint regret", list(zip(ends, sums, strict=True)), OBSERVED, width=2)

    def _dual_line(self, points: Points) -> Line:
        i = self._constraint
        return Line(
            "dual variable", [(point.episode, point.constraints[i].dual_variable) for point in points], OBSERVED, width=2
        )

    def show_notes(self, watched: WatchedAgent) -> None:
        """The figures of the latest status, which the drawn history may lag behind."""
        agent, status = watched.status, watched.status.constraints[self._constraint]
        mean = (
            f"A point is the mean of {self._episodes:,} {self._unit}{'s' if self._episodes > 1 else ''}. "
            f"All {self._unit}s: {status.mean_cost:.3f}; the latest plan predicts {status.predicted_cost:.3f}."
        )
        self._cost.note.set_text(
            self._history.failure or (mean if agent.completed_episodes else f"No {self._unit} is completed yet.")
        )
        bound = f" The theorem's bound: {figure(status.constraint_regret_bound)}." if self._dual else ""
        if self._regret:
            self._regret.note.set_text(
                f"The sum of cost less budget. Now {status.constraint_regret:,.1f}: below zero, budget is unspent. "
                f"Never above {status.constraint_regret_max:,.1f}.{bound}"
            )
        if self._dual:
            self._dual.note.set_text(
                f"Now {status.dual_variable:,.4g}; the price of a unit of cost is {status.cost_price:,.4g}. "
                f"Pessimism takes {status.pessimism:,.4g} off the budget."
            )
        if self._drift:
            self._drift.note.set_text(
                f"Now {figure(agent.drift_statistic)}. Drift is detected at {figure(agent.drift_alarm)}: without a "
                f"change, at most once in as many steps on average. {DONE.get(agent.on_detect, '')}"
            )

    def _choose_constraint(self, i: int) -> None:
        self._constraint = i
        self.show(self._agent)

    def _choose_period(self, i: int) -> None:
        self._latest_only = i == 1
        self.show(self._agent)


def figure(value: float) -> str:
    """0.1234, 12.34, 1,234,567: four significant digits, or a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _regret(point: admin_pb2.HistoryPoint, constraint: int) -> float:
    """The sum of cost less budget over the episodes of one point."""
    one = point.constraints[constraint]
    return point.episodes * (one.cost - one.cost_budget)


def _reward_lines(points: Points) -> list[Line]:
    return [
        Line("reward", [(point.episode, point.reward) for point in points], OBSERVED, width=2),
        Line("predicted", [(point.episode, point.predicted_reward) for point in points], PREDICTED),
    ]


def _mark(entry: Entry) -> Mark:
    return Mark(entry.episode, shorten(entry.text, LONGEST_MARK, placeholder=" …"), MARKS[entry.kind])
