"""Safe PSRL for tasks that never end, as a state machine without I/O: `start_epoch`, `observe`, `act`.

Epochs take the place of episodes. An epoch ends when some pair of state and action has been visited as often in it as in all
before it, or after `max_epoch_steps`; the next one draws a kernel and plans from the state in which the task then is. Steps are
counted since the beginning of the task. What is learned, drift and warm starts are those of `learner`.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from safe_psrl.arrays import Floats, Mask
from safe_psrl.errors import PlanStoppedError, SpecError, TransitionError
from safe_psrl.learner import AgentState, SafePsrl, estimated_signals
from safe_psrl.methods.certified import BASES
from safe_psrl.methods.certified_epoch import begin_certified_epoch
from safe_psrl.methods.epoch import EpochDraft, average_assumption_is_certain, begin_epoch, draw_action, empty_epoch_draft
from safe_psrl.posterior.drift import DriftReading
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.posterior.uncertainty import Observed
from safe_psrl.problem.checks import MAX_INTEGER, checked_integer, sealed
from safe_psrl.problem.options import DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.transition import Transition, check_transition

DEFAULT_MAX_EPOCH_STEPS: Final = 1_000


@dataclass(frozen=True, eq=False, slots=True)
class ContinuingState:
    """What has been learned, and where the task is. `learned.episode` counts epochs; `learned.pending` is of this epoch."""

    learned: AgentState
    step: int  # observed so far
    epoch_is_over: bool  # the next act is `start_epoch`


@dataclass(frozen=True, eq=False, slots=True)
class EpochPlan:
    """What was decided at the start of an epoch. Predictions are averages per step under the sampled kernel."""

    epoch: int
    first_step: int
    start: int  # the state that it was planned from
    probabilities: Floats  # [S, A], the policy
    predicted_reward: float
    predicted_costs: Floats  # [M]
    certified_costs: Floats | None  # [M], upper bounds on the average costs of a certified plan
    certificate: str  # what they rest on: confidence, certain or none; empty for other methods
    pessimism: Floats  # [M]
    dual_scale: Floats  # [M]
    dual_variables: Floats  # [M], lambda_k, with which it was planned
    next_dual_variables: Floats  # [M], lambda_{k+1}
    kernel_draws: int
    kernel_satisfiable: bool  # False: every draw contradicted assumption 1, and the last was used
    drift: DriftReading | None = None  # at the start of the epoch, if drift is watched for


class ContinuingPsrl:
    """The algorithm for one continuing task. Holds no state: methods take one and return the next.

    `base` is the learner whose tables it shares. `always_satisfiable` is that of `SafePsrl`.
    """

    def __init__(
        self,
        spec: CmdpSpec,
        options: SafePsrlOptions | None = None,
        seed: int = 0,
        *,
        drift: DriftOptions | None = None,
        max_epoch_steps: int = DEFAULT_MAX_EPOCH_STEPS,
        always_satisfiable: bool | None = None,
    ) -> None:
        if not spec.is_continuing:
            raise SpecError("horizon", spec.horizon, "must be continuing: use SafePsrl for a problem with episodes")
        self.spec = spec
        self.max_epoch_steps = checked_integer("max_epoch_steps", max_epoch_steps, 1)
        certain = average_assumption_is_certain(spec) if always_satisfiable is None else always_satisfiable
        self.base = SafePsrl(spec, options, seed, drift=drift, always_satisfiable=certain)

    @classmethod
    def over(cls, base: SafePsrl, max_epoch_steps: int) -> "ContinuingPsrl":
        """The algorithm on the tables and the seed of the learner `base`."""
        learner = cls.__new__(cls)
        learner.spec, learner.base = base.spec, base
        learner.max_epoch_steps = checked_integer("max_epoch_steps", max_epoch_steps, 1)
        return learner

    def initial_state(self, known: InitialCounts | None = None) -> ContinuingState:
        """The state of a new agent that starts from what is `known`."""
        return ContinuingState(self.base.initial_state(known), step=0, epoch_is_over=True)

    def start_epoch(self, state: ContinuingState, start: int, stop: Mask | None = None) -> tuple[ContinuingState, EpochPlan]:
        """Begin the next epoch in the state `start` of the task: the same arguments give the same plan, always.

        Raises `PlanStoppedError` once `stop` [1] is set.
        """
        checked_integer("start", start, 0, self.spec.num_states - 1)
        learned = self.base.settle(state.learned)
        reading = self.base.read_drift(learned)
        if reading is not None and reading.detected:
            learned = self.base.after_detection(learned)
        plan = replace(self.plan(learned, state.step, start, stop), drift=reading)
        after = AgentState(plan.epoch, plan.next_dual_variables, *learned.tables)
        return ContinuingState(after, state.step, epoch_is_over=False), plan

    def observe(self, state: ContinuingState, transition: Transition) -> ContinuingState:
        """The state after the transition of step `state.step`. Raises `TransitionError` and changes nothing if impossible."""
        check_transition(self.spec, transition)
        if transition.step != state.step:
            raise TransitionError("step", transition.step, f"must be {state.step}, the next step of the task")
        pending = (*state.learned.pending, transition)
        pair = transition.state, transition.action
        visits = sum((seen.state, seen.action) == pair for seen in pending)
        before = float(state.learned.transition_counts[(0, *pair)].sum())
        over = visits >= max(1.0, before) or len(pending) >= self.max_epoch_steps
        return ContinuingState(replace(state.learned, pending=pending), state.step + 1, epoch_is_over=over)

    def act(self, plan: EpochPlan, step: int, state: int) -> int:
        """The action at `step` of the task in `state`: the same arguments give the same action, always."""
        checked_integer("step", step, 0, MAX_INTEGER)
        checked_integer("state", state, 0, self.spec.num_states - 1)
        return int(draw_action(plan.probabilities, self.base.seed, step, state))

    def plan(self, learned: AgentState, step: int, start: int, stop: Mask | None = None) -> EpochPlan:
        """The plan of the next epoch, from a settled state."""
        k, draft = learned.episode + 1, empty_epoch_draft(self.spec, stop)
        draws, satisfied = self._begin(learned, k, start, draft)
        if draft.stop[0]:
            raise PlanStoppedError(f"epoch {k} was not planned: the plan was stopped")
        certified = self.base.options.is_certified
        return EpochPlan(
            epoch=k,
            first_step=step,
            start=start,
            probabilities=sealed(draft.probabilities),
            predicted_reward=float(draft.gains[0]),
            predicted_costs=sealed(draft.gains[1:]),
            certified_costs=sealed(draft.certificate) if certified else None,
            certificate=BASES[draft.basis[0]] if certified else "",
            pessimism=sealed(draft.pessimism),
            dual_scale=sealed(draft.dual_scale),
            dual_variables=learned.dual_variables,
            next_dual_variables=sealed(draft.dual_next),
            kernel_draws=draws,
            kernel_satisfiable=satisfied,
        )

    def _begin(self, learned: AgentState, k: int, start: int, draft: EpochDraft) -> tuple[int, bool]:
        spec, problem, seed, counts = self.spec, self.base.problem, self.base.seed, learned.transition_counts
        signals = estimated_signals(spec, learned.signal_sums, learned.visits)
        if not self.base.options.is_certified:
            return begin_epoch(problem, signals, seed, k, start, counts, learned.dual_variables, draft)
        observed = Observed(counts, signals, spec.learned, learned.signal_sums, learned.visits)
        known = (problem, observed, seed, k, start, draft)
        if spec.num_constraints == 1:
            return begin_certified_epoch(*known)
        from safe_psrl.methods.several_averages import begin_epoch_with_several  # noqa: PLC0415  # scipy's optimisers load slowly

        return begin_epoch_with_several(*known)


def read_only_views(tables: tuple[Floats, ...]) -> list[Floats]:
    """The same tables, which stay writable for their owner."""
    return [sealed(np.asarray(table).view()) for table in tables]
