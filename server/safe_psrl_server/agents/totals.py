"""Sums over an agent's episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from safe_psrl_proto.v1 import events_pb2


@dataclass(slots=True)
class Totals:
    """The fields of `events_pb2.Totals`, as plain numbers."""

    constraint_regret: list[float]
    constraint_regret_max: list[float]
    violations: list[int]
    last_costs: list[float]
    completed_episodes: int = 0
    transitions: int = 0
    overridden_actions: int = 0
    reward: float = 0.0
    last_reward: float = 0.0

    @classmethod
    def blank(cls, num_constraints: int) -> Self:
        zeros = [0.0] * num_constraints
        return cls(zeros, zeros.copy(), [0] * num_constraints, zeros.copy())

    @classmethod
    def read(cls, message: events_pb2.Totals) -> Self:
        values: Any = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in ("constraint_regret", "constraint_regret_max", "violations", "last_costs"):
            values[name] = values[name][:]  # a list of its own
        return cls(**values)

    def message(self) -> events_pb2.Totals:
        return events_pb2.Totals(**{field.name: getattr(self, field.name) for field in fields(self)})

    def complete(self, reward: float, costs: Sequence[float], budgets: Sequence[float]) -> None:
        """Add an episode that was played to its end."""
        self.completed_episodes += 1
        self.reward += reward
        self.last_reward = reward
        self.last_costs[:] = costs
        for i, (cost, budget) in enumerate(zip(costs, budgets, strict=True)):
            regret = self.constraint_regret[i] = self.constraint_regret[i] + (cost - budget)
            self.constraint_regret_max[i] = max(self.constraint_regret_max[i], regret)
            self.violations[i] += cost > budget
