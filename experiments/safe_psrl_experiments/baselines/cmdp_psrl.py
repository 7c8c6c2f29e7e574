"""CMDP-PSRL (Agarwal, Bai and Aggarwal 2022), adapted: posterior sampling and the exact constrained optimum of the sample.

Provenance: the paper's algorithm is for the average reward and draws anew when a visit count has doubled. This is an
adaptation to episodes: Dirichlet(1), one draw an episode; the constraint is dropped where the sample cannot keep it. Told
beyond the data: nothing.
"""

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Problem
from safe_psrl.planning.evaluation import evaluate_randomised
from safe_psrl.planning.optimum import solve_cmdp
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ENVIRONMENT, POSTERIOR, stream_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, enter
from safe_psrl_experiments.baselines.confidence import Counts, no_counts, record_path
from safe_psrl_experiments.baselines.playing import BaselineRun, play_randomised

UNCONSTRAINED = np.inf


class CmdpPsrlRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int) -> None:
        super().__init__("cmdp-psrl", spec, transitions, seed)
        self._counts = no_counts(spec, per_step=not spec.stationary)
        self.keep(self._counts)
        self._prior = (spec.dirichlet_prior > 0).astype(np.float64)

    def advance(self, episodes: int) -> None:
        span = self.next_span(episodes)
        run(self.problem, self.world, self._prior, self._counts, self.ledger, self.seed, *span)


@compiled
def run(
    problem: Problem, world: World, prior: Floats, counts: Counts, ledger: Ledger, seed: int, first: int, last: int
) -> None:
    horizon, (num_states, num_actions) = world.horizon, problem.available.shape
    p, values = np.empty(prior.shape), np.empty((2, num_states))
    policy = np.empty((horizon, num_states, num_actions))
    states, actions = np.empty(horizon + 1, np.int64), np.empty(horizon, np.int64)
    for k in range(first, last + 1):
        draw_kernel(stream_of(seed, k, POSTERIOR), prior, counts.transitions, p)
        feasible, _ = solve_cmdp(
            p, world.next_states, world.signals, problem.available, problem.initial, problem.tau[0], policy
        )
        if not feasible:
            solve_cmdp(p, world.next_states, world.signals, problem.available, problem.initial, UNCONSTRAINED, policy)
        evaluate_randomised(world.p, world.next_states, world.signals, policy, values)
        enter(ledger, problem, values, world.best_reward)
        play_randomised(stream_of(seed, k, ENVIRONMENT), world, policy, states, actions)
        record_path(counts, states, actions)
