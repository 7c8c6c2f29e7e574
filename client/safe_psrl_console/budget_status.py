"""How far a constraint is from its violation, as the service judges it: the one classification behind colours and headlines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from safe_psrl_proto.v1 import admin_pb2

SMALLEST_BUDGET: Final = 1e-9  # the service accepts none below it
FEWEST_EPISODES: Final = 20  # completed, before the service gives a verdict


class Level(StrEnum):
    """From worst to best."""

    OVER = "over"
    NEAR = "near"
    WITHIN = "within"
    UNKNOWN = "unknown"  # no verdict yet, or not readable


LEVELS: Final = {
    admin_pb2.BUDGET_VERDICT_ABOVE: Level.OVER,
    admin_pb2.BUDGET_VERDICT_NEAR: Level.NEAR,
    admin_pb2.BUDGET_VERDICT_WITHIN: Level.WITHIN,
}
VERDICTS: Final = {
    Level.OVER: "over budget",
    Level.NEAR: "near budget",
    Level.WITHIN: "holds",
    Level.UNKNOWN: "too early",
}


@dataclass(frozen=True)
class BudgetStatus:
    """One constraint of one agent: the verdict, and the mean cost and budget of the recent episodes that it is about."""

    constraint: str = ""
    level: Level = Level.UNKNOWN
    cost: float = 0.0
    budget: float = 0.0
    predicted_cost: float = 0.0
    rate: str = "episode"

    @property
    def known(self) -> bool:
        return self.level is not Level.UNKNOWN

    @property
    def margin(self) -> float:
        """The unspent budget of an episode, or per step."""
        return self.budget - self.cost

    @property
    def share(self) -> float:
        """Cost as a share of the budget."""
        return self.cost / max(self.budget, SMALLEST_BUDGET)


def budget_statuses(status: admin_pb2.AgentStatus) -> list[BudgetStatus]:
    """One for each constraint. Before the first completed episode, the budget is that of the definition."""
    return [
        BudgetStatus(
            one.name,
            LEVELS.get(one.verdict, Level.UNKNOWN),
            one.recent_cost,
            one.recent_budget if status.recent_episodes else one.cost_budget,
            one.predicted_cost,
            rate_of(status),
        )
        for one in status.constraints
    ]


def worst_status(statuses: Sequence[BudgetStatus]) -> BudgetStatus:
    """The one with the worst verdict; of several, the one with the greatest share of its budget."""
    order = list(Level)
    return min(statuses, key=lambda one: (order.index(one.level), -one.share), default=BudgetStatus())


def unit_of(status: admin_pb2.AgentStatus) -> str:
    """What its totals count."""
    return "epoch" if status.continuing else "episode"


def rate_of(status: admin_pb2.AgentStatus) -> str:
    """What its rewards, costs and budgets are of."""
    return "step" if status.continuing else "episode"


@dataclass(frozen=True)
class Headline:
    """Whether the constraints hold, and by what margin."""

    level: Level
    title: str
    detail: str
    worst: str = ""  # the agent
    lead: str = ""  # how it is introduced


def headline(statuses: Iterable[tuple[str, BudgetStatus]]) -> Headline:
    """`statuses`: the worst one of every agent."""
    everything = dict(statuses)
    known = {agent: one for agent, one in everything.items() if one.known}
    if not known:
        title = "No agents yet" if not everything else f"No agent has completed {FEWEST_EPISODES} episodes yet"
        return Headline(Level.UNKNOWN, title, "")
    worst = worst_status(list(known.values()))
    agent = next(agent for agent, one in known.items() if one is worst)
    unknown = len(everything) - len(known)
    detail = _detail(worst) + (f". No verdict: {unknown:,}" if unknown else "")
    lead = "Closest to its budget" if worst.level is Level.WITHIN else "Worst"
    return Headline(worst.level, _title(list(known.values()), worst.level), detail, agent, lead)


def _title(known: Sequence[BudgetStatus], worst: Level) -> str:
    if worst is Level.WITHIN:
        return "Within budget" if len(known) == 1 else f"All {len(known):,} agents are within budget"
    count = sum(one.level is worst for one in known)
    agents = f"{count:,} of {len(known):,} agent{'' if len(known) == 1 else 's'} {'is' if count == 1 else 'are'}"
    return f"{agents} over budget" if worst is Level.OVER else f"{agents} near budget, none is over"


def _detail(worst: BudgetStatus) -> str:
    spent = f"{worst.cost:.2f} of {worst.budget:g} per {worst.rate}"
    if worst.margin < 0:
        return f"{spent}: {-worst.margin:.2f} ({-worst.margin / worst.budget if worst.budget else 0:.1%}) above"
    return f"{spent}: {worst.margin:.2f} ({worst.margin / worst.budget if worst.budget else 1:.1%}) to spare"
