"""Simulated runs of continuing tasks on a known kernel: learning, playing and accounting by steps.

Regret is realised, as a task has one course and no expectation over episodes: T times the optimum less the sum of rewards, and
the sum of costs less T times the budget. Strong violation is exact: each step of an epoch counts the positive part of its
policy's true average cost less the budget.

An algorithm is a function that writes the policy of an epoch; `ContinuingRun` is that of `ContinuingPsrl`, to the bit.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.arrays import Counts, Floats
from safe_psrl.compiled import compiled
from safe_psrl.continuing import ContinuingPsrl, read_only_views
from safe_psrl.learner import AgentState, Tables
from safe_psrl.methods.episode import COST_TOLERANCE, Problem
from safe_psrl.methods.epoch import draw_action
from safe_psrl.planning.average_cost import evaluate_average
from safe_psrl.planning.average_optimum import EXACT_RESTART
from safe_psrl.posterior.drift import count_visit
from safe_psrl.posterior.streams import ENVIRONMENT, MAX_SEED, stream_of, uniform
from safe_psrl.problem.checks import checked_integer
from safe_psrl.simulation import Ledger, World, empty_ledger, pick, world_of

STATE, EPOCH, EPOCH_STEPS, OVER = range(4)  # of `Course.place`
NO_LIMIT: Final = 2**62


class Course(NamedTuple):
    """Where a run is. An epoch ends when a pair's visits in it reach `patience` times those before it, or the limit."""

    place: Counts  # [4]: the state, epochs begun, steps of this epoch, whether it is over
    epoch_visits: Counts  # [S, A], in this epoch
    before: Floats  # [S, A], before it
    probabilities: Floats  # [S, A], its policy
    excess: Floats  # [M], its true average costs less the budgets


def first_course(world: World, num_constraints: int, environment_seed: int) -> Course:
    _, num_states, num_actions, _ = world.p.shape
    start = pick(world.cumulative_initial, uniform(stream_of(environment_seed, 0, ENVIRONMENT)))
    pair = (num_states, num_actions)
    return Course(
        np.array([start, 0, 0, 1]), np.zeros(pair, np.int64), np.zeros(pair), np.zeros(pair), np.zeros(num_constraints)
    )


class StepwiseRun:
    """A run of any algorithm: `plan(epoch, state, probabilities)` writes the policy of an epoch; `tables` have the counts."""

    def __init__(
        self,
        problem: Problem,
        world: World,
        tables: Tables,
        plan: Callable[[int, int, Floats], None],
        *,
        seed: int,
        environment_seed: int,
        patience: float = 1.0,
        max_epoch_steps: int = NO_LIMIT,
    ) -> None:
        num_constraints = len(world.signals) - 1
        self.episode = 0  # steps done: a step is to a continuing task what an episode is to others
        self.world, self.learned_tables = world, tables
        self.ledger: Ledger = empty_ledger(num_constraints)
        self.course = first_course(world, num_constraints, checked_integer("environment_seed", environment_seed, 0, MAX_SEED))
        self.dual, self.epsilon = np.zeros(num_constraints), np.zeros(num_constraints)
        self._problem, self._plan, self._rule = problem, plan, (patience, max_epoch_steps)
        self._seeds = seed, environment_seed

    @property
    def dual_variables(self) -> Floats:
        return self.dual.copy()

    @property
    def pessimism(self) -> Floats:
        """[M]: of the last epoch."""
        return self.epsilon.copy()

    @property
    def epochs(self) -> int:
        """The number of epochs begun."""
        return int(self.course.place[EPOCH])

    @property
    def tables(self) -> dict[str, NDArray[Any]]:
        """Every array that a step changes, by name: with `episode`, all that is needed to continue elsewhere."""
        named = {**self.learned_tables._asdict(), **self.ledger._asdict(), **self.course._asdict()}
        return {**named, "dual": self.dual, "epsilon": self.epsilon}

    def move_to(self, transitions: ArrayLike) -> None:
        """Change the true kernel to `transitions` from now on, without telling the learner."""
        raise NotImplementedError

    def advance(self, steps: int) -> None:
        """Play that many more steps."""
        last = self.episode + checked_integer("steps", steps, 0)
        while self.episode < last:
            if self.course.place[OVER]:
                self._begin()
            known = (self._problem, self.world, self.learned_tables, self.ledger, self.course)
            self.episode = play_steps(*known, *self._seeds, *self._rule, self.episode, last)

    def _begin(self) -> None:
        course, world = self.course, self.world
        course.place[EPOCH] += 1
        course.place[EPOCH_STEPS] = course.place[OVER] = 0
        self._plan(int(course.place[EPOCH]), int(course.place[STATE]), course.probabilities)
        course.epoch_visits.fill(0)
        course.before[:] = self.learned_tables.transition_counts[0].sum(axis=-1)
        start = (np.arange(len(course.before)) == course.place[STATE]).astype(np.float64)
        gains, reached = np.empty(len(world.signals)), np.zeros(len(course.before))
        known = (world.p, world.next_states, world.signals, course.probabilities)
        evaluate_average(*known, start, EXACT_RESTART, reached, gains, np.zeros(1, np.bool_))
        course.excess[:] = gains[1:] - self._problem.tau


class ContinuingRun(StepwiseRun):
    """`ContinuingPsrl` against the kernel `transitions`, from its first step on; parameters as in `SimulatedRun`."""

    def __init__(
        self,
        learner: ContinuingPsrl,
        transitions: ArrayLike,
        *,
        environment_seed: int = 0,
        true_signals: Floats | None = None,
        noisy: bool = False,
    ) -> None:
        self.learner = learner
        self._truth = learner.spec if true_signals is None else learner.spec.with_signals(true_signals)
        base = learner.base
        super().__init__(
            base.problem,
            world_of(self._truth, transitions, noisy=noisy),
            learner.initial_state().learned.tables.copy(),
            self._plan_epoch,
            seed=base.seed,
            environment_seed=environment_seed,
            max_epoch_steps=learner.max_epoch_steps,
        )

    @property
    def state(self) -> AgentState:
        """What has been learned, settled."""
        return AgentState(self.epochs, self.dual.copy(), *self.learned_tables.copy())

    def move_to(self, transitions: ArrayLike) -> None:
        self.world = world_of(self._truth, transitions, noisy=self.world.noisy)

    def _plan_epoch(self, epoch: int, start: int, probabilities: Floats) -> None:
        base, tables = self.learner.base, self.learned_tables
        seen = AgentState(epoch - 1, self.dual.copy(), *Tables(*read_only_views(tables)))
        reading = base.read_drift(seen)
        if reading is not None and reading.detected:
            self.ledger.detections[0] += 1
            base.react(tables)
        plan = self.learner.plan(seen, self.episode, start)
        probabilities[:] = plan.probabilities
        self.dual[:], self.epsilon[:] = plan.next_dual_variables, plan.pessimism


@compiled
def play_steps(
    problem: Problem,
    world: World,
    tables: Tables,
    ledger: Ledger,
    course: Course,
    seed: int,
    environment_seed: int,
    patience: float,
    max_epoch_steps: int,
    first: int,
    last: int,
) -> int:
    """Play steps from `first` to before `last`, or to the end of the epoch; return the next step."""
    place, num_signals = course.place, world.signals.shape[0]
    for step in range(first, last):
        stream = stream_of(environment_seed, step + 1, ENVIRONMENT)
        state = place[STATE]
        action = draw_action(course.probabilities, seed, step, state)
        entry = pick(world.cumulative_p[0, state, action], uniform(stream))
        count_step(problem, world, tables, stream, state, action, entry)
        regret = world.best_reward - world.signals[0, 0, state, action]
        ledger.objective_regret[0] += regret
        ledger.priced_regret[0] += regret
        violated = False
        for i in range(num_signals - 1):
            ledger.constraint_regret[i] += world.signals[1 + i, 0, state, action] - problem.tau[i]
            ledger.constraint_regret_max[i] = max(ledger.constraint_regret_max[i], ledger.constraint_regret[i])
            ledger.strong_violation[i] += max(0.0, course.excess[i])
            ledger.priced_regret[0] += world.prices[i] * max(0.0, course.excess[i])
            violated = violated or course.excess[i] > COST_TOLERANCE
        if violated:
            ledger.violating_episodes[0] += 1
        place[STATE] = entry if world.next_states.shape[0] == 0 else world.next_states[0, state, action, entry]
        place[EPOCH_STEPS] += 1
        course.epoch_visits[state, action] += 1
        enough = course.epoch_visits[state, action] >= max(1.0, patience * course.before[state, action])
        if enough or place[EPOCH_STEPS] >= max_epoch_steps:
            place[OVER] = 1
            return step + 1
    return last


@compiled
def count_step(
    problem: Problem, world: World, tables: Tables, stream: NDArray[np.uint64], state: int, action: int, entry: int
) -> None:
    """Count one transition in the tables, as `SafePsrl.count` does; signals are drawn from `stream` where they are noisy."""
    counts, sums, visits, recent, statistics = tables
    rows = (problem.prior[0, state, action], counts[0, state, action], recent[0, state, action])
    watched = statistics.shape[0] > 0
    statistic = statistics[0, state, action] if watched else 0.0
    statistic = count_visit(*rows, entry, statistic, problem.keep, problem.keep_recent)
    if watched:
        statistics[0, state, action] = statistic
    if visits.shape[0] > 0:
        visits[0, state, action] = visits[0, state, action] * problem.keep + 1.0
        for n in range(world.signals.shape[0]):
            seen = world.signals[n, 0, state, action]
            if world.noisy:
                seen = 1.0 if uniform(stream) < seen else 0.0
            sums[n, 0, state, action] = sums[n, 0, state, action] * problem.keep + seen
