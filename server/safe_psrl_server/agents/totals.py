"""Sums over an agent's life: of its live episodes, and separately of those in shadow, where another controller acts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Self

from safe_psrl_proto.v1 import events_pb2

GUARDED: Final = ("guarded_regret", "guarded_violation")
REGRETS: Final = ("constraint_regret", "constraint_regret_max", "strong_violation")
PER_CONSTRAINT: Final = (*REGRETS, "violations", "last_costs", "costs", *GUARDED)


class Sums(NamedTuple):
    """The summed reward and costs of an episode's steps."""

    reward: float
    costs: list[float]


class Mean(NamedTuple):
    """A mean over the completed episodes, with its standard error."""

    mean: float
    error: float


@dataclass(slots=True)
class ShadowTotals:
    """The fields of `events_pb2.ShadowTotals`, as plain numbers."""

    completed_episodes: int
    reward: float
    reward_squares: float
    costs: list[float]
    cost_squares: list[float]
    weight: float
    weight_squares: float
    weighted_reward: float
    weighted_costs: list[float]

    @classmethod
    def blank(cls, num_constraints: int) -> Self:
        costs, squares, weighted = ([0.0] * num_constraints for _ in range(3))
        return cls(0, 0.0, 0.0, costs, squares, 0.0, 0.0, 0.0, weighted)

    @classmethod
    def read(cls, message: events_pb2.ShadowTotals, num_constraints: int) -> Self:
        none = [0.0] * num_constraints  # stored by a release that had no shadow
        number, costs, squares = message.completed_episodes, message.costs[:] or none[:], message.cost_squares[:] or none[:]
        sums = (number, message.reward, message.reward_squares, costs, squares)
        if not message.weight:
            return cls(*sums, number, number, message.reward, costs[:])
        return cls(*sums, message.weight, message.weight_squares, message.weighted_reward, message.weighted_costs[:])

    def message(self) -> events_pb2.ShadowTotals:
        message = events_pb2.ShadowTotals(
            completed_episodes=self.completed_episodes,
            reward=self.reward,
            reward_squares=self.reward_squares,
            costs=self.costs,
            cost_squares=self.cost_squares,
        )
        if self.weight != self.completed_episodes:
            message.weight, message.weight_squares = self.weight, self.weight_squares
            message.weighted_reward = self.weighted_reward
            message.weighted_costs.extend(self.weighted_costs)
        return message

    def complete(self, reward: float, costs: Sequence[float], weight: float) -> None:
        """Add a completed episode (weight 1) or epoch (its number of steps)."""
        self.completed_episodes += 1
        self.weight += weight
        self.weight_squares += weight**2
        self._add(1.0, reward, costs, weight)

    def replace(self, old: Sums, new: Sums, weight: float) -> None:
        """Replace the reward and costs of a completed episode."""
        for sign, sums in ((-1.0, old), (1.0, new)):
            self._add(sign, sums.reward, sums.costs, weight)

    def _add(self, sign: float, reward: float, costs: Sequence[float], weight: float) -> None:
        self.reward += sign * reward
        self.reward_squares += sign * reward**2
        self.weighted_reward += sign * reward * weight
        for i, cost in enumerate(costs):
            self.costs[i] += sign * cost
            self.cost_squares[i] += sign * cost**2
            self.weighted_costs[i] += sign * cost * weight

    @property
    def means(self) -> list[Mean]:
        """The means of the reward, then of each cost, per episode, or per step of epochs. At least two must be completed.

        Means over epochs and their errors are ratio estimates: the deviation of each epoch's sum from the mean times its steps
        is taken as independent.
        """
        sums, squares = [self.reward, *self.costs], [self.reward_squares, *self.cost_squares]
        weighted = [self.weighted_reward, *self.weighted_costs]
        return [self._mean(*parts) for parts in zip(sums, squares, weighted, strict=True)]

    def _mean(self, total: float, squares: float, weighted: float) -> Mean:
        mean, number = total / self.weight, self.completed_episodes
        deviations = squares - 2 * mean * weighted + mean**2 * self.weight_squares
        return Mean(mean, math.sqrt(max(0.0, deviations) * number / (number - 1)) / self.weight)


@dataclass(slots=True)
class Totals:
    """The fields of `events_pb2.Totals`, as plain numbers."""

    constraint_regret: list[float]
    constraint_regret_max: list[float]
    violations: list[int]
    last_costs: list[float]
    strong_violation: list[float]
    costs: list[float]
    guarded_regret: list[float]
    guarded_violation: list[float]
    shadow: ShadowTotals
    completed_episodes: int = 0
    transitions: int = 0
    overridden_actions: int = 0
    reward: float = 0.0
    last_reward: float = 0.0
    drift_detections: int = 0
    epoch_steps: int = 0

    @classmethod
    def blank(cls, num_constraints: int) -> Self:
        lists: Any = {name: [0.0] * num_constraints for name in PER_CONSTRAINT}
        return cls(**{**lists, "violations": [0] * num_constraints, "shadow": ShadowTotals.blank(num_constraints)})

    @classmethod
    def read(cls, message: events_pb2.Totals, num_constraints: int) -> Self:
        values: Any = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in PER_CONSTRAINT:
            values[name] = values[name][:]  # a list of its own
        values["shadow"] = ShadowTotals.read(message.shadow, num_constraints)
        return cls(**values)

    def message(self) -> events_pb2.Totals:
        values: Any = {field.name: getattr(self, field.name) for field in fields(self)}
        shadow = self.shadow.message() if self.shadow.completed_episodes else None
        return events_pb2.Totals(**{**values, "shadow": shadow})

    def complete(self, reward: float, costs: Sequence[float], budgets: Sequence[float]) -> None:
        """Add a completed episode."""
        self.completed_episodes += 1
        self.reward += reward
        self.last_reward = reward
        self.last_costs[:] = costs
        for i, (cost, budget) in enumerate(zip(costs, budgets, strict=True)):
            regret = self.constraint_regret[i] = self.constraint_regret[i] + (cost - budget)
            self.constraint_regret_max[i] = max(self.constraint_regret_max[i], regret)
            self.violations[i] += cost > budget
            self.strong_violation[i] += max(0.0, cost - budget)
            self.costs[i] += cost
            self.guarded_regret[i] += cost - budget
            self.guarded_violation[i] += max(0.0, cost - budget)

    def complete_epoch(self, steps: int) -> None:
        """The last completed episode was an epoch of `steps`: store its values as averages per step."""
        self.epoch_steps += steps
        self.last_reward /= steps
        self.last_costs[:] = [cost / steps for cost in self.last_costs]

    def replace(self, before: Sums, after: Sums, budgets: Sequence[float]) -> None:
        """Replace the sums of a completed episode. The greatest regret so far stays or grows."""
        self.reward += after.reward - before.reward
        for i, (old, new, budget) in enumerate(zip(before.costs, after.costs, budgets, strict=True)):
            excess = max(0.0, new - budget) - max(0.0, old - budget)
            regret = self.constraint_regret[i] = self.constraint_regret[i] + (new - old)
            self.constraint_regret_max[i] = max(self.constraint_regret_max[i], regret)
            self.violations[i] += (new > budget) - (old > budget)
            self.strong_violation[i] += excess
            self.costs[i] += new - old
            self.guarded_regret[i] += new - old
            self.guarded_violation[i] += excess

    def resume(self) -> None:
        """Reset the sums that a guard limits."""
        self.guarded_regret[:] = self.guarded_violation[:] = [0.0] * len(self.costs)
