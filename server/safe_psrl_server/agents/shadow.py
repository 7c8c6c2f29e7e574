"""Episodes of agents in shadow: another controller acts, and what it achieves is summed apart from the agent's own totals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server.errors import InvalidArgumentError

LIVE: Final = "live"
SHADOW: Final = "shadow"
MODES: Final = (LIVE, SHADOW)


def check_mode(message: model_pb2.AgentSpec) -> None:
    if message.mode not in {"", *MODES}:
        raise InvalidArgumentError("spec.mode", f"must be one of {', '.join(MODES)}, got {message.mode[:60]!r}")


class Sums(NamedTuple):
    """Of an episode's steps."""

    reward: float
    costs: list[float]


class Mean(NamedTuple):
    """Of the completed episodes, with its standard error."""

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
        """Add an episode that was played to its end, with the weight 1, or an epoch with its steps."""
        self.completed_episodes += 1
        self.weight += weight
        self.weight_squares += weight**2
        self._add(1.0, reward, costs, weight)

    def replace(self, old: Sums, new: Sums, weight: float) -> None:
        """Count a completed episode with another reward and other costs."""
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
        """Of the reward, then of each cost: per episode, or per step of epochs; at least two are completed.

        Means of epochs are ratios, and their errors those of ratios: the deviations of each epoch's sum from the mean times its
        steps are taken as independent.
        """
        sums, squares = [self.reward, *self.costs], [self.reward_squares, *self.cost_squares]
        weighted = [self.weighted_reward, *self.weighted_costs]
        return [self._mean(*parts) for parts in zip(sums, squares, weighted, strict=True)]

    def _mean(self, total: float, squares: float, weighted: float) -> Mean:
        mean, number = total / self.weight, self.completed_episodes
        deviations = squares - 2 * mean * weighted + mean**2 * self.weight_squares
        return Mean(mean, math.sqrt(max(0.0, deviations) * number / (number - 1)) / self.weight)
