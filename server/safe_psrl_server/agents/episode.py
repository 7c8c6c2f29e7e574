"""Episodes as a record keeps them, and the sums over an agent's life."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Self

from safe_psrl.arrays import Policy
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.messages import policy_from_message

GUARDED: Final = ("guarded_regret", "guarded_violation")
REGRETS: Final = ("constraint_regret", "constraint_regret_max", "strong_violation")
PER_CONSTRAINT: Final = (*REGRETS, "violations", "last_costs", "costs", *GUARDED)


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
    completed_episodes: int = 0
    transitions: int = 0
    overridden_actions: int = 0
    reward: float = 0.0
    last_reward: float = 0.0
    drift_detections: int = 0

    @classmethod
    def blank(cls, num_constraints: int) -> Self:
        lists: Any = {name: [0.0] * num_constraints for name in PER_CONSTRAINT}
        return cls(**{**lists, "violations": [0] * num_constraints})

    @classmethod
    def read(cls, message: events_pb2.Totals, budgets: Sequence[float]) -> Self:
        values: Any = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in PER_CONSTRAINT:
            values[name] = values[name][:]  # a list of its own
        for name in GUARDED:
            values[name] = values[name] or [0.0] * len(budgets)  # stored by a release that had no guards
        if not values["costs"]:  # stored by a release that had constant budgets
            regrets, episodes = values["constraint_regret"], message.completed_episodes
            values["costs"] = [regret + episodes * tau for regret, tau in zip(regrets, budgets, strict=True)]
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
            self.strong_violation[i] += max(0.0, cost - budget)
            self.costs[i] += cost
            self.guarded_regret[i] += cost - budget
            self.guarded_violation[i] += max(0.0, cost - budget)

    def resume(self) -> None:
        """Begin the sums that a guard limits anew."""
        self.guarded_regret[:] = self.guarded_violation[:] = [0.0] * len(self.costs)


COMPLETED: Final = events_pb2.EPISODE_END_COMPLETED
OPEN: Final = events_pb2.EPISODE_END_UNSPECIFIED


@dataclass(eq=False)
class Episode:
    """An episode that is open, or one that was closed recently."""

    started: events_pb2.EpisodeStarted
    definition: Definition  # with which it was started
    active_micros: int
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN
    transitions: list[Transition] = field(default_factory=list)

    @cached_property
    def number(self) -> int:
        return self.started.episode

    @cached_property
    def cost_budgets(self) -> Sequence[float]:
        """What it was planned with."""
        return self.started.cost_budgets[:] or self.definition.cost_budgets

    @cached_property
    def policy(self) -> Policy:
        """[H, S]."""
        return policy_from_message(self.started.policy)

    @property
    def lacks_policy(self) -> bool:
        """Whether its policy is stored beside the stream and was not read yet."""
        return self.is_apart and not self.started.policy.actions

    @property
    def is_apart(self) -> bool:
        """Whether its policy is stored beside the stream."""
        return bool(self.started.policy_digest)

    def overridden(self, steps: Sequence[Transition]) -> int:
        """The number of `steps` whose action is not the proposed one."""
        proposed = self.policy.item
        return sum([proposed(step.step, step.state) != step.action for step in steps])

    @property
    def next_step(self) -> int:
        return len(self.transitions)

    @property
    def is_open(self) -> bool:
        return self.end == OPEN
