"""Safe PSRL as a state machine without I/O: `start_episode`, `observe`, `act`.

State is what the next step needs and what a checkpoint keeps; a plan is what an episode plays and an observer reads. Both
are immutable. Observations wait in `pending` and enter the counts when the next episode starts, the first moment at which
they matter: so the cost of a step does not grow with the tables.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Mask, Policies, Policy
from safe_psrl.errors import PlanStoppedError, SpecError
from safe_psrl.methods.certified import BASES, begin_certified_episode
from safe_psrl.methods.episode import Draft, Problem, assumption_is_certain, begin_episode, empty_draft, problem_of
from safe_psrl.planning.evaluation import evaluate_mixture, evaluate_policy
from safe_psrl.posterior.drift import DriftReading, count_visit, forget, greatest_rows, total_statistic
from safe_psrl.posterior.initial_counts import InitialCounts, checked_initial_counts
from safe_psrl.posterior.streams import MAX_SEED
from safe_psrl.posterior.uncertainty import Observed, belief_of
from safe_psrl.problem.checks import checked_integer, sealed
from safe_psrl.problem.options import DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
from safe_psrl.transition import Transition, check_transition


class Tables(NamedTuple):
    """What was observed, as tables that change in place; see `AgentState`."""

    transition_counts: Floats
    signal_sums: Floats
    visits: Floats
    recent_counts: Floats
    drift_statistics: Floats

    def copy(self) -> "Tables":
        return Tables(*[table.copy() for table in self])


@dataclass(frozen=True, eq=False, slots=True)
class AgentState:
    """What has been learned. `signal_sums` and `visits` have no rows unless some signal is learned.

    Counts are weights: whole numbers unless something was forgotten. `recent_counts` and `drift_statistics` are those of the
    detector of drift (`posterior.drift`), and empty without it.
    """

    episode: int  # started so far; the next one is episode + 1
    dual_variables: Floats  # [M], lambda_{episode + 1}
    transition_counts: Floats  # [L, S, A, W], without `pending`
    signal_sums: Floats  # [1+M, 1|H, S, A]
    visits: Floats  # [1|H, S, A]
    recent_counts: Floats  # [L, S, A, W|0], the short memory
    drift_statistics: Floats  # [L|0, S, A]
    pending: tuple[Transition, ...] = ()

    def __post_init__(self) -> None:
        sealed(self.dual_variables)
        for table in self.tables:
            sealed(table)

    @property
    def tables(self) -> Tables:
        return Tables(self.transition_counts, self.signal_sums, self.visits, self.recent_counts, self.drift_statistics)


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What was decided at the start of an episode. Predictions are under the sampled kernel."""

    episode: int
    policy: Policy  # [H, S]; of a mixture, the part that this episode plays
    mixture: Policies  # [N, H, S], the policies that a certified plan draws from; no rows for other methods
    shares: Floats  # [N], their probabilities
    predicted_reward: float
    predicted_costs: Floats  # [M]
    certified_costs: Floats | None  # [M], upper bounds on the expected costs of a certified plan
    certificate: str  # what they rest on: confidence, certain or none; empty for other methods
    pessimism: Floats  # [M]
    dual_scale: Floats  # [M]
    dual_variables: Floats  # [M], lambda_k, with which it was planned
    next_dual_variables: Floats  # [M], lambda_{k+1}
    kernel_draws: int
    kernel_satisfiable: bool  # False: every draw contradicted assumption 1, and the last was used
    drift: DriftReading | None = None  # at the start of the episode, if drift is watched for

    @property
    def cost_prices(self) -> Floats:
        """lambda_k / eta_k."""
        return self.dual_variables / self.dual_scale


class SafePsrl:
    """The algorithm for one problem, with its options and seed. Holds no state: methods take one and return the next.

    `always_satisfiable` is the answer of `assumption_is_certain`, which takes as long as a plan for each constraint; it is
    computed unless it is given.
    """

    def __init__(
        self,
        spec: CmdpSpec,
        options: SafePsrlOptions | None = None,
        seed: int = 0,
        *,
        drift: DriftOptions | None = None,
        always_satisfiable: bool | None = None,
    ) -> None:
        self.spec = spec
        self.options = options or SafePsrlOptions()
        self.drift = drift or DriftOptions()
        self.seed = checked_integer("seed", seed, 0, MAX_SEED)
        self.always_satisfiable = assumption_is_certain(spec) if always_satisfiable is None else always_satisfiable
        self.problem: Problem = problem_of(spec, self.options, self.always_satisfiable, self.drift)

    def with_seed(self, seed: int) -> "SafePsrl":
        """The same learner with another seed. The tables built from the problem, which take time and memory, are shared."""
        other = copy(self)
        other.seed = checked_integer("seed", seed, 0, MAX_SEED)
        return other

    @cached_property
    def work(self) -> int:
        """Draws and products of a plan on one kernel: a measure of its time. A draw takes as long as 20 products."""
        spec = self.spec
        width: int = spec.dirichlet_prior.shape[-1]
        return spec.num_states * spec.num_actions * width * (spec.horizon + 20)

    def initial_state(self, known: InitialCounts | None = None) -> AgentState:
        """The state of a new agent. It starts from what is `known`, which is forgotten like observations."""
        blank = blank_state(self.spec, detect=self.drift.detect)
        if known is None:
            return blank
        counts, sums, visits = checked_initial_counts(self.spec, known)
        return replace(blank, transition_counts=counts, signal_sums=sums, visits=visits)

    def start_episode(self, state: AgentState, stop: Mask | None = None) -> tuple[AgentState, Plan]:
        """Begin episode `state.episode + 1`: the same state gives the same plan, always.

        Raises `PlanStoppedError` once `stop` [1] is set.
        """
        state = self.settle(state)
        reading = self.read_drift(state)
        if reading is not None and reading.detected:
            state = self.after_detection(state)
        plan = replace(self.plan(state, stop), drift=reading)
        return AgentState(plan.episode, plan.next_dual_variables, *state.tables), plan

    def settle(self, state: AgentState) -> AgentState:
        """The same state with every pending transition in its tables."""
        if not state.pending:
            return state
        tables = state.tables.copy()
        for transition in state.pending:
            self.count(tables, transition)
        return AgentState(state.episode, state.dual_variables, *tables)

    def count(self, tables: Tables, transition: Transition) -> None:
        """Count one transition in `tables`, in place (eq. (7))."""
        spec, keep, keep_recent = self.spec, self.problem.keep, self.problem.keep_recent
        counts, sums, visits, recent, statistics = tables
        step, state, action, next_state, reward, costs = transition
        place = spec.place_of(step, state, action, next_state) if spec.lists_next_states else next_state
        row = step % len(counts), state, action
        rows = spec.dirichlet_prior[row], counts[row], recent[row]
        if self.drift.detect:
            statistics[row] = count_visit(*rows, place, statistics.item(row), keep, keep_recent)
        else:
            count_visit(*rows, place, 0.0, keep, keep_recent)
        if spec.learns_signals:
            pair = step % len(visits), state, action
            visits[pair] = visits[pair] * keep + 1.0
            for signal, seen in zip(sums, (reward, *costs), strict=True):
                signal[pair] = signal[pair] * keep + seen

    def replace_signals(self, tables: Tables, before: Transition, after: Transition) -> None:
        """Learn the reward and costs of `after` in place of those of `before`, which was counted in full, in place."""
        pair = before.step % len(tables.visits), before.state, before.action
        signals = zip(tables.signal_sums, (before.reward, *before.costs), (after.reward, *after.costs), strict=True)
        for signal, old, new in signals:
            signal[pair] = min(max(signal[pair] + (new - old), 0.0), tables.visits[pair])  # rounding must not leave the range

    def read_drift(self, state: AgentState) -> DriftReading | None:
        """Whether drift is detected in a settled state; None if detection is off."""
        if not self.drift.detect:
            return None
        total = total_statistic(state.drift_statistics)
        return DriftReading(total, greatest_rows(state.drift_statistics) if total >= self.problem.alarm else ())

    def after_detection(self, state: AgentState) -> AgentState:
        """The state from which the next episode is planned, with the statistics reset."""
        tables = state.tables.copy()
        self.react(tables)
        return AgentState(state.episode, state.dual_variables, *tables)

    def react(self, tables: Tables) -> None:
        """Reset the statistics in `tables`, and forget if the options say so, in place."""
        tables.drift_statistics.fill(0.0)
        if self.problem.forgets:
            forget(tables.transition_counts, tables.recent_counts, tables.signal_sums, tables.visits)

    def plan(self, state: AgentState, stop: Mask | None = None) -> Plan:
        """The plan of episode `state.episode + 1`, from a settled state. Raises `PlanStoppedError` once `stop` [1] is set."""
        if self.spec.is_continuing:
            raise SpecError("horizon", CONTINUING, "has no episodes: use ContinuingPsrl")
        k, draft = state.episode + 1, empty_draft(self.spec, certified=self.options.is_certified, stop=stop)
        draws, satisfied = self._begin(state, k, draft)
        if draft.stop[0]:
            raise PlanStoppedError(f"episode {k} was not planned: the plan was stopped")
        return Plan(
            episode=k,
            policy=sealed(draft.policy),
            mixture=sealed(draft.mixture[draft.shares > 0.0]),
            shares=sealed(draft.shares[draft.shares > 0.0]),
            predicted_reward=float(self.spec.initial_distribution @ draft.values[0]),
            predicted_costs=sealed(draft.predicted_costs),
            certified_costs=sealed(draft.certificate) if self.options.is_certified else None,
            certificate=BASES[draft.basis[0]] if self.options.is_certified else "",
            pessimism=sealed(draft.pessimism),
            dual_scale=sealed(draft.dual_scale),
            dual_variables=state.dual_variables,
            next_dual_variables=sealed(draft.dual_next),
            kernel_draws=draws,
            kernel_satisfiable=satisfied,
        )

    def _begin(self, state: AgentState, k: int, draft: Draft) -> tuple[int, bool]:
        spec, counts = self.spec, state.transition_counts
        signals = estimated_signals(spec, state.signal_sums, state.visits)
        if not self.options.is_certified:
            return begin_episode(self.problem, signals, self.seed, k, counts, state.dual_variables, draft)
        observed = Observed(counts, signals, spec.learned, state.signal_sums, state.visits)
        known = (self.problem, observed, self.seed, k, draft)
        if spec.num_constraints == 1:
            return begin_certified_episode(*known)
        from safe_psrl.methods.several_constraints import begin_with_several  # noqa: PLC0415  # scipy's optimisers load slowly

        return begin_with_several(*known)

    def expected_values(self, state: AgentState, plan: Plan) -> Floats:
        """[1+M]: the expected reward and costs of `plan` under the mean of the posterior, in a settled state."""
        spec = self.spec
        mean = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts).mean
        signals = estimated_signals(spec, state.signal_sums, state.visits)
        values = np.empty((len(signals), spec.num_states))
        if len(plan.shares):
            evaluate_mixture(mean, spec.next_states, signals, plan.mixture, plan.shares, values)
        else:
            evaluate_policy(mean, spec.next_states, signals, plan.policy, values)
        return sealed(values @ spec.initial_distribution)

    def observe(self, state: AgentState, transition: Transition) -> AgentState:
        """The posterior after one more transition (eq. (7)). Raises `TransitionError` and changes nothing if impossible."""
        check_transition(self.spec, transition)
        return replace(state, pending=(*state.pending, transition))


def blank_state(spec: CmdpSpec, *, detect: bool = False) -> AgentState:
    """The state of an agent without observations."""
    signals, rows = spec.signals if spec.learns_signals else spec.signals[:, :0], spec.dirichlet_prior
    return AgentState(
        episode=0,
        dual_variables=np.zeros(spec.num_constraints),
        transition_counts=np.zeros(rows.shape),
        signal_sums=np.zeros(signals.shape),
        visits=np.zeros(signals.shape[1:]),
        recent_counts=np.zeros(rows.shape if detect else (*rows.shape[:3], 0)),
        drift_statistics=np.zeros((len(rows) if detect else 0, *rows.shape[1:3])),
    )


def act(plan: Plan, step: int, state: int) -> int:
    """The action of pi_k at `step` (from 0) in `state`."""
    horizon, num_states = plan.policy.shape
    checked_integer("step", step, 0, horizon - 1)
    checked_integer("state", state, 0, num_states - 1)
    return int(plan.policy[step, state])


def estimated_signals(spec: CmdpSpec, sums: Floats, visits: Floats) -> Floats:
    """[1+M, 1|H, S, A]: known signals as given; learned ones by their mean where visited, by the guess elsewhere."""
    if not spec.learns_signals:
        return spec.signals
    return sealed(np.where(spec.learned & (visits > 0), sums / np.where(visits > 0, visits, 1.0), spec.signals))
