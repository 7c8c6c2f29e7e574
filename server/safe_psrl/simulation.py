"""Whole simulated runs of Safe PSRL on a known kernel, compiled: learning, playing and exact regret accounting.

A run is the same sequence of `begin_episode` and observations as `SafePsrl` makes, to the bit; only the bookkeeping around
them is compiled too. It advances in pieces, so that its caller can show progress and stop between them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.arrays import Counts, Floats, Mask, NextStates, Policy, Words
from safe_psrl.compiled import compiled
from safe_psrl.learner import AgentState, SafePsrl, Tables, estimated_signals
from safe_psrl.methods.certified import begin_certified_episode
from safe_psrl.methods.episode import COST_TOLERANCE, Draft, Problem, begin_episode, empty_draft
from safe_psrl.planning.evaluation import dot, evaluate_mixture, evaluate_policy
from safe_psrl.planning.optimum import checked_kernel, cost_prices, exact_optimum
from safe_psrl.posterior.drift import count_visit, forget, total_statistic
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.posterior.streams import ENVIRONMENT, MAX_SEED, stream_of, uniform
from safe_psrl.posterior.uncertainty import Observed
from safe_psrl.problem.checks import checked_integer, sealed
from safe_psrl.problem.spec import CmdpSpec


class World(NamedTuple):
    """The true kernel and signals of a run."""

    p: Floats  # [1|H, S, A, W]
    next_states: NextStates  # [0|1|H, S, A, W]
    cumulative_p: Floats  # its running sums over next states
    cumulative_initial: Floats  # [S]
    signals: Floats  # [1+M, 1|H, S, A], true means
    horizon: int
    noisy: bool  # signals are drawn as 0 or 1 with their mean; else they are their mean
    best_reward: float  # V*(tau)
    prices: Floats  # [M], what V* gains per unit of each budget


class Ledger(NamedTuple):
    """What a run has cost so far (paper, eqs. (4) and (5)): signed, by exact evaluation on the true kernel."""

    objective_regret: Floats  # [1]
    constraint_regret: Floats  # [M]
    constraint_regret_max: Floats  # [M], its running maximum, at least 0
    strong_violation: Floats  # [M], the sum of the positive parts: episodes below the budget offset nothing
    priced_regret: Floats  # [1], objective regret plus strong violation at the budgets' prices
    violating_episodes: Counts  # [1], episodes whose true expected cost exceeded a budget
    detections: Counts  # [1], of drift


class Memory(NamedTuple):
    """The learner's state in place. `AgentState` is its immutable form."""

    dual: Floats  # [M]
    counts: Floats  # [L, S, A, W]
    sums: Floats  # [1+M, 1|H, S, A], no rows unless a signal is learned
    visits: Floats  # [1|H, S, A]
    recent: Floats  # [L, S, A, W|0], the short memory, if drift is watched for
    drift: Floats  # [L|0, S, A], its statistics
    estimates: Floats  # [1+M, 1|H, S, A], the signals as the learner sees them
    learned: Mask  # [1+M, 1|H, S, A]


def world_of(truth: CmdpSpec, transitions: ArrayLike, *, noisy: bool = False) -> World:
    """The kernel `transitions` paying the signals of `truth`."""
    p = checked_kernel(truth, transitions)
    return World(
        p=p,
        next_states=truth.next_states,
        cumulative_p=np.cumsum(p, axis=-1),
        cumulative_initial=np.cumsum(truth.initial_distribution),
        signals=truth.signals,
        horizon=truth.horizon,
        noisy=noisy,
        best_reward=exact_optimum(truth, transitions).reward,
        prices=cost_prices(truth, transitions),
    )


def empty_ledger(num_constraints: int) -> Ledger:
    regret, greatest, strong = (np.zeros(num_constraints) for _ in range(3))
    return Ledger(np.zeros(1), regret, greatest, strong, np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64))


def fresh_memory(learner: SafePsrl, known: InitialCounts | None = None) -> Memory:
    """The memory of a new learner that starts from what is `known`."""
    state = learner.initial_state(known)
    counts, sums, visits, recent, drift = state.tables.copy()
    signals, learned = np.array(estimated_signals(learner.spec, sums, visits)), learner.spec.learned
    return Memory(state.dual_variables.copy(), counts, sums, visits, recent, drift, signals, learned)


class SimulatedRun:
    """Safe PSRL against the kernel `transitions`, from its first episode on.

    `true_signals` are the means that the world pays; the specification's own unless given. With `noisy`, each reward and cost
    is drawn as 0 or 1. The environment's randomness is the stream of (`environment_seed`, episode). `known` is a warm start.
    """

    def __init__(
        self,
        learner: SafePsrl,
        transitions: ArrayLike,
        *,
        environment_seed: int = 0,
        true_signals: Floats | None = None,
        noisy: bool = False,
        known: InitialCounts | None = None,
    ) -> None:
        spec = learner.spec
        self._truth = spec if true_signals is None else spec.with_signals(true_signals)
        self.episode = 0
        self.world = world_of(self._truth, transitions, noisy=noisy)
        self.ledger = empty_ledger(spec.num_constraints)
        self._memory = fresh_memory(learner, known)
        # Read-only views have the types of the learner's state: kernels that both call are compiled once.
        views = {name: sealed(table.view()) for name, table in self._memory._asdict().items()}
        self._seen = self._memory._replace(**views)
        self.learner = learner
        self.draft = empty_draft(spec, certified=learner.options.is_certified)
        self._environment_seed = checked_integer("environment_seed", environment_seed, 0, MAX_SEED)

    @property
    def state(self) -> AgentState:
        """The learner's state after the last episode."""
        memory = self._memory
        tables = Tables(memory.counts, memory.sums, memory.visits, memory.recent, memory.drift)
        return AgentState(self.episode, memory.dual.copy(), *tables.copy())

    @property
    def dual_variables(self) -> Floats:
        """[M]: after the last episode."""
        return self._memory.dual.copy()

    @property
    def tables(self) -> dict[str, NDArray[Any]]:
        """Every array that an episode changes, by name: with `episode`, all that is needed to continue elsewhere."""
        memory = self._memory._asdict()
        del memory["learned"]
        return {**memory, **self.ledger._asdict(), "last_pessimism": self.draft.pessimism}

    @property
    def pessimism(self) -> Floats:
        """[M]: of the last episode."""
        return self.draft.pessimism.copy()

    def move_to(self, transitions: ArrayLike) -> None:
        """Change the true kernel to `transitions` from now on, without telling the learner."""
        self.world = world_of(self._truth, transitions, noisy=self.world.noisy)

    def advance(self, episodes: int) -> None:
        """Play that many more episodes."""
        checked_integer("episodes", episodes, 0)
        if self.learner.options.is_certified and self.learner.spec.num_constraints > 1:
            for _ in range(episodes):
                self._advance_by_linear_programs()
        else:
            last = self.episode + episodes
            known = (self.learner.problem, self.world, self._memory, self._seen, self.ledger, self.draft)
            run_episodes(*known, self.learner.seed, self._environment_seed, self.episode + 1, last)
            self.episode = last

    def _advance_by_linear_programs(self) -> None:
        """One episode with several constraints, whose plans cannot be compiled."""
        from safe_psrl.methods.several_constraints import begin_with_several  # noqa: PLC0415  # scipy's optimisers load slowly

        learner, world, seen, k = self.learner, self.world, self._seen, self.episode + 1
        notice_drift(learner.problem, self._memory, self.ledger)
        observed = Observed(seen.counts, seen.estimates, seen.learned, seen.sums, seen.visits)
        begin_with_several(learner.problem, observed, learner.seed, k, self.draft)
        finish_episode(learner.problem, world, self._memory, self.ledger, self.draft, self._environment_seed, k)
        self.episode = k


@compiled
def run_episodes(
    problem: Problem,
    world: World,
    memory: Memory,
    seen: Memory,
    ledger: Ledger,
    draft: Draft,
    seed: int,
    environment_seed: int,
    first: int,
    last: int,
) -> None:
    """Play episodes `first` to `last`; `seen` is `memory` read-only."""
    for k in range(first, last + 1):
        notice_drift(problem, memory, ledger)
        if draft.shares.size > 0:
            observed = Observed(seen.counts, seen.estimates, seen.learned, seen.sums, seen.visits)
            begin_certified_episode(problem, observed, seed, k, draft)
        else:
            begin_episode(problem, seen.estimates, seed, k, seen.counts, seen.dual, draft)
        finish_episode(problem, world, memory, ledger, draft, environment_seed, k)


@compiled
def notice_drift(problem: Problem, memory: Memory, ledger: Ledger) -> None:
    """Read the statistics, and react to a detection."""
    if memory.drift.shape[0] > 0 and total_statistic(memory.drift) >= problem.alarm:
        ledger.detections[0] += 1
        memory.drift.fill(0.0)
        if problem.forgets:
            forget(memory.counts, memory.recent, memory.sums, memory.visits)


@compiled
def finish_episode(
    problem: Problem, world: World, memory: Memory, ledger: Ledger, draft: Draft, environment_seed: int, k: int
) -> None:
    """Account for the plan of episode `k` and play it."""
    values = np.empty_like(draft.values)
    if draft.shares.size > 0:
        evaluate_mixture(world.p, world.next_states, world.signals, draft.mixture, draft.shares, values)
    else:
        evaluate_policy(world.p, world.next_states, world.signals, draft.policy, values)
    enter(ledger, problem, world, values)
    play_episode(stream_of(environment_seed, k, ENVIRONMENT), problem, world, draft.policy, memory)
    for i in range(memory.dual.size):
        memory.dual[i] = draft.dual_next[i]
    if memory.visits.shape[0] > 0:
        estimate(memory)


@compiled
def enter(ledger: Ledger, problem: Problem, world: World, values: Floats) -> None:
    """Add an episode whose policy has the true `values` [1+M, S]."""
    regret = world.best_reward - dot(problem.initial, values[0])
    ledger.objective_regret[0] += regret
    ledger.priced_regret[0] += regret
    violated = False
    for i in range(problem.tau.size):
        excess = dot(problem.initial, values[1 + i]) - problem.tau[i]
        violated = violated or excess > COST_TOLERANCE
        ledger.constraint_regret[i] += excess
        ledger.constraint_regret_max[i] = max(ledger.constraint_regret_max[i], ledger.constraint_regret[i])
        ledger.strong_violation[i] += max(0.0, excess)
        ledger.priced_regret[0] += world.prices[i] * max(0.0, excess)
    if violated:
        ledger.violating_episodes[0] += 1


@compiled
def play_episode(stream: Words, problem: Problem, world: World, policy: Policy, memory: Memory) -> None:
    """Play `policy` on the true kernel and add what is seen to the counts."""
    counts, sums, visits = memory.counts, memory.sums, memory.visits
    state = pick(world.cumulative_initial, uniform(stream))
    for h in range(policy.shape[0]):
        action = policy[h, state]
        step_p = h if world.p.shape[0] > 1 else 0
        place = pick(world.cumulative_p[step_p, state, action], uniform(stream))
        step = h if counts.shape[0] > 1 else 0
        rows = (problem.prior[step, state, action], counts[step, state, action], memory.recent[step, state, action])
        watched = memory.drift.shape[0] > 0
        statistic = memory.drift[step, state, action] if watched else 0.0
        statistic = count_visit(*rows, place, statistic, problem.keep, problem.keep_recent)
        if watched:
            memory.drift[step, state, action] = statistic
        if world.noisy or visits.shape[0] > 0:
            step_signals = h if world.signals.shape[1] > 1 else 0
            step_visits = h if visits.shape[0] > 1 else 0
            for n in range(world.signals.shape[0]):
                seen = world.signals[n, step_signals, state, action]
                if world.noisy:
                    seen = 1.0 if uniform(stream) < seen else 0.0
                if visits.shape[0] > 0:
                    sums[n, step_visits, state, action] = sums[n, step_visits, state, action] * problem.keep + seen
            if visits.shape[0] > 0:
                visits[step_visits, state, action] = visits[step_visits, state, action] * problem.keep + 1.0
        if world.next_states.shape[0] == 0:
            state = place
        else:
            state = int(world.next_states[h if world.next_states.shape[0] > 1 else 0, state, action, place])


@compiled
def pick(cumulative: Floats, share: float) -> int:
    """The index that `share` in [0, 1) falls on: the inverse of a cumulative distribution."""
    last = cumulative.size - 1
    target = share * cumulative[last]
    for i in range(last):
        if target < cumulative[i]:
            return i
    return last


@compiled
def estimate(memory: Memory) -> None:
    """Write the mean of each learned entry that was visited."""
    visits = memory.visits.ravel()
    for n in range(memory.learned.shape[0]):
        learned, sums, estimates = memory.learned[n].ravel(), memory.sums[n].ravel(), memory.estimates[n].ravel()  # views
        for i in range(visits.size):
            if learned[i] and visits[i] > 0:
                estimates[i] = sums[i] / visits[i]
