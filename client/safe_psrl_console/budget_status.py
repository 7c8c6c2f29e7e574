"""How far a constraint is from its violation: the one classification behind colours, headlines and events."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from safe_psrl_proto.v1 import admin_pb2

NEAR: Final = 0.95  # of the budget: learning drives the cost towards it, so a lower threshold would always be passed
CLEARLY_WITHIN: Final = 0.99  # hysteresis: an agent that was over budget counts as within again below this
CONFIDENCE: Final = 2.0  # standard errors
SMALLEST_BUDGET: Final = 1e-9  # the service accepts none below it
FEWEST_EPISODES: Final = 20  # completed, before a verdict


class Level(StrEnum):
    """From worst to best."""

    OVER = "over"
    NEAR = "near"
    WITHIN = "within"
    UNKNOWN = "unknown"  # fewer than FEWEST_EPISODES completed, or not readable


@dataclass(frozen=True)
class BudgetStatus:
    """One constraint of one agent: mean cost of all completed episodes, and of the recent ones with its standard error."""

    constraint: str
    budget: float
    mean_cost: float
    recent_cost: float
    recent_error: float = math.inf
    known: bool = True

    @property
    def cost(self) -> float:
        """The mean of all episodes, which the guarantee is about; or the lower confidence bound of the recent mean, if greater.

        So noise does not make it oscillate around the budget, and a drift shows even while the overall mean is far below.
        """
        return max(self.mean_cost, self.recent_cost - CONFIDENCE * self.recent_error)

    @property
    def margin(self) -> float:
        """The unspent budget per episode."""
        return self.budget - self.cost

    @property
    def share(self) -> float:
        """Cost as a share of the budget."""
        return self.cost / max(self.budget, SMALLEST_BUDGET)

    @property
    def level(self) -> Level:
        if not self.known:
            return Level.UNKNOWN
        if self.share > 1:
            return Level.OVER
        return Level.NEAR if self.share >= NEAR else Level.WITHIN


VERDICTS: Final = {
    Level.OVER: "over budget",
    Level.NEAR: "holds, near",
    Level.WITHIN: "holds",
    Level.UNKNOWN: "too early",
}


def budget_statuses(status: admin_pb2.AgentStatus) -> list[BudgetStatus]:
    """One for each constraint, from a single status: of the recent episodes, it has the last one only."""
    known = status.completed_episodes >= FEWEST_EPISODES
    return [BudgetStatus(one.name, one.cost_budget, one.mean_cost, one.last_cost, known=known) for one in status.constraints]


def worst_level(statuses: Iterable[BudgetStatus]) -> Level:
    """The level of the constraint nearest to its violation."""
    levels = {one.level for one in statuses}
    return next((level for level in Level if level in levels), Level.UNKNOWN)


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
    everything = list(statuses)
    known = [(agent, budget_status) for agent, budget_status in everything if budget_status.known]
    if not known:
        title = "No agents yet" if not everything else f"No agent has completed {FEWEST_EPISODES} episodes yet"
        return Headline(Level.UNKNOWN, title, "")
    agent, worst = max(known, key=lambda one: one[1].share)
    over = sum(budget_status.level is Level.OVER for _, budget_status in known)
    near = sum(budget_status.level is Level.NEAR for _, budget_status in known)
    unknown = len(everything) - len(known)
    detail = _detail(worst) + (f". No verdict: {unknown:,}" if unknown else "")
    return Headline(worst.level, _title(len(known), over, near), detail, agent, "Worst" if over else "Closest to it")


def _title(known: int, over: int, near: int) -> str:
    if over:
        return f"{over} of {known:,} agent{'' if known == 1 else 's'} {'is' if over == 1 else 'are'} over budget"
    holding = "Within budget" if known == 1 else f"All {known:,} agents are within budget"
    return f"{holding}, {near if known > 1 else 'but'} close to it" if near else holding


def _detail(worst: BudgetStatus) -> str:
    spent = f"{worst.cost:.2f} of {worst.budget:g} per episode"
    if worst.margin < 0:
        return f"{spent}: {-worst.margin:.2f} ({-worst.margin / worst.budget if worst.budget else 0:.1%}) above"
    return f"{spent}: {worst.margin:.2f} ({worst.margin / worst.budget if worst.budget else 1:.1%}) to spare"
