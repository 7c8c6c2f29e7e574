"""Episodes, and epochs of continuing tasks, as a record keeps them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Policy
from safe_psrl.methods.epoch import draw_action
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.messages import table_of_policy
from safe_psrl_server.agents.totals import Sums

COMPLETED: Final = events_pb2.EPISODE_END_COMPLETED
OPEN: Final = events_pb2.EPISODE_END_UNSPECIFIED
ROUNDING: Final = 1e-9


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


def check_epoch(epoch: Episode) -> None:
    """Of an imported agent: its policy fits the problem, and its steps those of the task. Raises ValueError."""
    spec, started = epoch.definition.spec, epoch.started
    pairs = spec.num_states, spec.num_actions
    if started.policy.num_states != spec.num_states or len(started.policy.probabilities) != pairs[0] * pairs[1]:
        raise ValueError("its policy has the wrong size")
    policy = np.asarray(epoch.policy, np.float64)
    if not (np.isfinite(policy).all() and (policy >= 0).all() and (np.abs(policy.sum(axis=1) - 1) <= ROUNDING).all()):
        raise ValueError("its policy has impossible probabilities")
    if (policy[~spec.available_actions] > 0).any():
        raise ValueError("its policy has actions that are not available")
    if not (started.HasField("state") and 0 <= started.state < spec.num_states and 0 <= started.first_step <= 2**53):
        raise ValueError("it begins nowhere")
    if not all(np.isfinite(pair.before) and pair.before >= 0 for pair in epoch.pairs.values()):
        raise ValueError("its visits before are impossible")
