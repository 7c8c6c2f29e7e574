"""Episodes as a record keeps them, and the sums over an agent's life."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from safe_psrl.arrays import Floats, Policy
from safe_psrl.methods.epoch import draw_action
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.messages import table_of_policy
from safe_psrl_server.agents.shadow import ShadowTotals, Sums

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
    def read(cls, message: events_pb2.Totals, budgets: Sequence[float]) -> Self:
        values: Any = {field.name: getattr(message, field.name) for field in fields(cls)}
        for name in PER_CONSTRAINT:
            values[name] = values[name][:]  # a list of its own
        for name in GUARDED:
            values[name] = values[name] or [0.0] * len(budgets)  # stored by a release that had no guards
        if not values["costs"]:  # stored by a release that had constant budgets
            regrets, episodes = values["constraint_regret"], message.completed_episodes
            values["costs"] = [regret + episodes * tau for regret, tau in zip(regrets, budgets, strict=True)]
        values["shadow"] = ShadowTotals.read(message.shadow, len(budgets))
        return cls(**values)

    def message(self) -> events_pb2.Totals:
        values: Any = {field.name: getattr(self, field.name) for field in fields(self)}
        shadow = self.shadow.message() if self.shadow.completed_episodes else None
        return events_pb2.Totals(**{**values, "shadow": shadow})

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

    def complete_epoch(self, steps: int) -> None:
        """What was completed last was an epoch of `steps`: its own values are averages per step."""
        self.epoch_steps += steps
        self.last_reward /= steps
        self.last_costs[:] = [cost / steps for cost in self.last_costs]

    def replace(self, before: Sums, after: Sums, budgets: Sequence[float]) -> None:
        """Count a completed episode with other sums. The greatest regret that ever was stays, or grows."""
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


COMPLETED: Final = events_pb2.EPISODE_END_COMPLETED
OPEN: Final = events_pb2.EPISODE_END_UNSPECIFIED


class PairVisits(NamedTuple):
    """Of a pair: its weight before an epoch, and its visits in it."""

    before: float
    visits: int

    @property
    def are_enough(self) -> bool:
        """Whether they end the epoch."""
        return self.visits >= max(1.0, self.before)


def corrected(step: Transition, correction: events_pb2.SignalCorrected) -> Transition:
    """`step` with what `correction` replaces."""
    reward = correction.reward if correction.HasField("reward") else step.reward
    return step._replace(reward=reward, costs=tuple(correction.costs) or step.costs)


@dataclass(eq=False)
class Episode:
    """An episode that is open, or one that was closed recently."""

    started: events_pb2.EpisodeStarted
    definition: Definition  # with which it was started
    active_micros: int
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN
    transitions: list[Transition] = field(default_factory=list)  # as they were reported first
    corrections: dict[int, events_pb2.SignalCorrected] = field(default_factory=dict)  # by step
    pairs: dict[tuple[int, int], "PairVisits"] = field(default_factory=dict)  # of an epoch, by state and action

    @cached_property
    def number(self) -> int:
        return self.started.episode

    @cached_property
    def is_shadow(self) -> bool:
        """Whether it was started in shadow. It stays so if the agent is promoted meanwhile."""
        return self.started.shadow

    @cached_property
    def cost_budgets(self) -> Sequence[float]:
        """What it was planned with."""
        return self.started.cost_budgets[:] or self.definition.cost_budgets

    @property
    def cost_limits(self) -> Sequence[float]:
        """What its costs are counted against: the budgets; of an epoch, for each of its steps."""
        return self.cost_limits_after(self.next_step)

    def cost_limits_after(self, steps: int) -> Sequence[float]:
        """The same once it has so many steps."""
        return [budget * steps for budget in self.cost_budgets] if self.is_epoch else self.cost_budgets

    @property
    def weight(self) -> int:
        """What its sums are divided by for averages: the steps of an epoch."""
        return self.next_step if self.is_epoch else 1

    @cached_property
    def is_epoch(self) -> bool:
        """Of a continuing task."""
        return self.definition.spec.is_continuing

    @cached_property
    def policy(self) -> Policy | Floats:
        """Actions [H, S]; of an epoch probabilities [S, A]."""
        return table_of_policy(self.started.policy)

    def action(self, step: int, state: int) -> int:
        """What it plays: the same whenever it is requested."""
        if self.is_epoch:
            return int(draw_action(self.policy, self.definition.learner.seed, self.started.first_step + step, state))  # type: ignore[arg-type]
        return int(self.policy.item(step, state))

    @property
    def lacks_policy(self) -> bool:
        """Whether its policy is stored beside the stream and was not read yet."""
        return self.is_apart and not (self.started.policy.actions or self.started.policy.probabilities)

    @property
    def is_apart(self) -> bool:
        """Whether its policy is stored beside the stream."""
        return bool(self.started.policy_digest)

    def overridden(self, steps: Sequence[Transition]) -> int:
        """The number of `steps` whose action is not the proposed one. None in shadow, where proposals are not played."""
        if self.is_shadow:
            return 0
        proposed = self.action
        return sum([proposed(step.step, step.state) != step.action for step in steps])

    def sums(self, corrections: Iterable[events_pb2.SignalCorrected] | None = None, more: Sequence[Transition] = ()) -> Sums:
        """Of the reported steps with their corrections, or with others, and of `more` steps after them."""
        steps = [*self.transitions, *more]
        for one in self.corrections.values() if corrections is None else corrections:
            steps[one.step] = corrected(steps[one.step], one)
        num_constraints = len(self.started.pessimism)
        costs = [sum((step.costs[i] for step in steps), 0.0) for i in range(num_constraints)]
        return Sums(sum((step.reward for step in steps), 0.0), costs)

    @property
    def next_step(self) -> int:
        return len(self.transitions)

    def restore_pairs(self, before: Sequence[float]) -> None:
        """Count the visits of an epoch's steps. Raises ValueError unless each pair has its weight in `before`."""
        visits = dict[tuple[int, int], int]()
        for step in self.transitions if self.is_epoch else ():
            visits[step.state, step.action] = visits.get((step.state, step.action), 0) + 1
        counted = zip(visits.items(), before, strict=True)
        self.pairs = {pair: PairVisits(weight, number) for (pair, number), weight in counted}

    @property
    def is_counted(self) -> bool:
        """Whether the agent's totals include it: it was completed, or is an epoch with steps that ended in any way."""
        return self.end == COMPLETED or (self.is_epoch and not self.is_open and bool(self.transitions))

    @property
    def is_open(self) -> bool:
        return self.end == OPEN
