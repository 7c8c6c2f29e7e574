"""Episodes, and epochs of continuing tasks, as an agent's record stores them."""

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
    """A pair of state and action: its weight before an epoch, and its visits in the epoch."""

    before: float
    visits: int

    @property
    def are_enough(self) -> bool:
        """Whether these visits end the epoch."""
        return self.visits >= max(1.0, self.before)


def corrected(step: Transition, correction: events_pb2.SignalCorrected) -> Transition:
    """`step` with the reward and costs of `correction`, where it has them."""
    reward = correction.reward if correction.HasField("reward") else step.reward
    return step._replace(reward=reward, costs=tuple(correction.costs) or step.costs)


@dataclass(eq=False)
class Episode:
    """An episode that is open, or one that was closed recently."""

    started: events_pb2.EpisodeStarted
    definition: Definition  # the one with which the episode was started
    active_micros: int
    end: "events_pb2.EpisodeEnd.ValueType" = OPEN
    transitions: list[Transition] = field(default_factory=list)  # as first reported, without corrections
    corrections: dict[int, events_pb2.SignalCorrected] = field(default_factory=dict)  # by step
    pairs: dict[tuple[int, int], "PairVisits"] = field(default_factory=dict)  # epochs only: by state and action

    @cached_property
    def number(self) -> int:
        return self.started.episode

    @cached_property
    def is_shadow(self) -> bool:
        """Whether the episode was started in shadow. A later promotion does not change this."""
        return self.started.shadow

    @cached_property
    def cost_budgets(self) -> Sequence[float]:
        """The budgets with which the episode was planned."""
        return self.started.cost_budgets[:] or self.definition.cost_budgets

    @property
    def cost_limits(self) -> Sequence[float]:
        """The limits of the summed costs: the budgets; for an epoch, the budgets times its steps."""
        return self.cost_limits_after(self.next_step)

    def cost_limits_after(self, steps: int) -> Sequence[float]:
        """`cost_limits` when the episode has this number of steps."""
        return [budget * steps for budget in self.cost_budgets] if self.is_epoch else self.cost_budgets

    @property
    def weight(self) -> int:
        """The divisor that turns sums into averages: 1, or the steps of an epoch."""
        return self.next_step if self.is_epoch else 1

    @cached_property
    def is_epoch(self) -> bool:
        """Whether this is an epoch of a continuing task."""
        return self.definition.spec.is_continuing

    @cached_property
    def policy(self) -> Policy | Floats:
        """Actions [H, S]; for an epoch, probabilities [S, A]."""
        return table_of_policy(self.started.policy)

    def action(self, step: int, state: int) -> int:
        """The action that is played; the same each time it is requested."""
        if self.is_epoch:
            return int(draw_action(self.policy, self.definition.learner.seed, self.started.first_step + step, state))  # type: ignore[arg-type]
        return int(self.policy.item(step, state))

    @property
    def lacks_policy(self) -> bool:
        """Whether the policy is stored outside the stream and was not read yet."""
        return self.is_apart and not (self.started.policy.actions or self.started.policy.probabilities)

    @property
    def is_apart(self) -> bool:
        """Whether the policy is stored outside the stream."""
        return bool(self.started.policy_digest)

    def overridden(self, steps: Sequence[Transition]) -> int:
        """The number of `steps` whose action is not the proposed one; 0 in shadow, where proposals are not played."""
        if self.is_shadow:
            return 0
        proposed = self.action
        return sum([proposed(step.step, step.state) != step.action for step in steps])

    def sums(self, corrections: Iterable[events_pb2.SignalCorrected] | None = None, more: Sequence[Transition] = ()) -> Sums:
        """Sums over the reported steps and `more` steps after them, with the given corrections (by default those made)."""
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
        """Whether the agent's totals include it: a completed episode, or an ended epoch with at least one step."""
        return self.end == COMPLETED or (self.is_epoch and not self.is_open and bool(self.transitions))

    @property
    def is_open(self) -> bool:
        return self.end == OPEN


def check_epoch(epoch: Episode) -> None:
    """Check an imported agent's epoch: its policy fits the problem, its steps fit the task. Raises ValueError."""
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
