"""The compared systems on continuing tasks, the setting for which two of them were made.

CMDP-PSRL (Agarwal, Bai and Aggarwal 2022): Dirichlet(1), a new sample when the visits of some pair have doubled, and the exact
constrained optimum of the sample; the constraint is dropped where the sample cannot satisfy it.

PSConRL (Provodin et al. 2023): Dirichlet(max(n, 0.05)); a policy is kept until the visits of some pair reach three times its
earlier ones. Reward and cost are known here, so that nothing takes the place of empirical ones.

PSRL: without a constraint. The safe baseline: the true optimum at the satisfiable cost, which learns nothing.
"""

import numpy as np
from numpy.typing import ArrayLike

from safe_psrl.arrays import Floats
from safe_psrl.continuing_simulation import StepwiseRun
from safe_psrl.errors import SpecError
from safe_psrl.learner import Tables, blank_state
from safe_psrl.methods.episode import problem_of
from safe_psrl.methods.epoch import one_state
from safe_psrl.planning.average_cost import RESTART
from safe_psrl.planning.average_optimum import solve_average_cmdp
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import world_of

UNCONSTRAINED = np.inf
LEAST_WEIGHT = 0.05  # of a next state, in PSConRL
PATIENCE = 3.0  # times the earlier visits of a pair, in PSConRL


class ContinuingBaselineRun(StepwiseRun):
    """A run of a compared system: `plan` writes the policy of an epoch."""

    def __init__(self, name: str, spec: CmdpSpec, transitions: Floats, seed: int, *, patience: float = 1.0) -> None:
        if spec.num_constraints != 1 or spec.learns_signals:
            raise SpecError("algorithm", name, "is defined for one constraint with known reward and cost only")
        self.name, self.spec, self.seed = name, spec, seed
        known: Tables = blank_state(spec).tables.copy()
        problem = problem_of(spec, SafePsrlOptions(), always_satisfiable=True)
        world = world_of(spec, transitions)
        super().__init__(problem, world, known, self.plan, seed=seed, environment_seed=seed, patience=patience)

    def plan(self, epoch: int, start: int, probabilities: Floats) -> None:
        raise NotImplementedError

    def move_to(self, _transitions: ArrayLike) -> None:
        raise SpecError("algorithm", self.name, "does not support a world that changes; run safe-psrl or certified")

    def plan_sample(self, weights: Floats, epoch: int, start: int, budgets: tuple[float, ...], probabilities: Floats) -> None:
        """Write the optimum of a kernel drawn from Dirichlet(`weights`), at the first of the budgets that can be kept."""
        spec, p, stop = self.spec, np.empty(weights.shape), np.zeros(1, np.bool_)
        draw_kernel(stream_of(self.seed, epoch, POSTERIOR), weights, np.zeros(weights.shape), p)
        known = (p, spec.next_states, spec.signals.copy(), spec.available_actions.copy(), one_state(spec.num_states, start))
        for budget in budgets:
            feasible, _ = solve_average_cmdp(*known, RESTART, budget, probabilities, stop)
            if feasible:
                return


class ContinuingCmdpPsrlRun(ContinuingBaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _steps: int = 0) -> None:
        super().__init__("cmdp-psrl", spec, transitions, seed)

    def plan(self, epoch: int, start: int, probabilities: Floats) -> None:
        weights = self.spec.support + self.learned_tables.transition_counts
        self.plan_sample(weights, epoch, start, (float(self.spec.cost_budgets[0]), UNCONSTRAINED), probabilities)


class PsConRlRun(ContinuingBaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _steps: int = 0) -> None:
        super().__init__("psconrl", spec, transitions, seed, patience=PATIENCE)

    def plan(self, epoch: int, start: int, probabilities: Floats) -> None:
        weights = np.where(self.spec.support, np.maximum(self.learned_tables.transition_counts, LEAST_WEIGHT), 0.0)
        self.plan_sample(weights, epoch, start, (float(self.spec.cost_budgets[0]), UNCONSTRAINED), probabilities)


class ContinuingPsrlRun(ContinuingBaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _steps: int = 0) -> None:
        super().__init__("psrl", spec, transitions, seed)

    def plan(self, epoch: int, start: int, probabilities: Floats) -> None:
        weights = self.spec.dirichlet_prior + self.learned_tables.transition_counts
        self.plan_sample(weights, epoch, start, (UNCONSTRAINED,), probabilities)


class ContinuingSafeBaselineRun(ContinuingBaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _steps: int = 0) -> None:
        super().__init__("safe-baseline", spec, transitions, seed)
        self._policy = exact_optimum(spec, transitions, spec.satisfiable_costs).policy[0]

    def plan(self, _epoch: int, _start: int, probabilities: Floats) -> None:
        probabilities[:] = self._policy
