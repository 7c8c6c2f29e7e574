"""Posterior sampling without pessimism.

PSRL (Osband, Russo and Van Roy 2013): the paper's algorithm, which knows no constraint; Safe PSRL with the dual variable at
0.

CMDP-PSRL (Agarwal, Bai and Aggarwal 2022), adapted: the exact constrained optimum of the sample. The paper's algorithm is
for the average reward and samples when a visit count has doubled; this adaptation to episodes has Dirichlet(1) and one
sample per episode, and drops the constraint where the sample cannot satisfy it.

Told beyond the data: nothing.
"""

from functools import partial

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.learner import SafePsrl
from safe_psrl.methods.episode import Draft, Problem, empty_draft
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.planning.optimum import solve_cmdp
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ENVIRONMENT, POSTERIOR, stream_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, Memory, World, enter, fresh_memory, play_episode
from safe_psrl_experiments.baselines.playing import BaselineRun, Counts, no_counts, play_randomised

UNCONSTRAINED = np.inf


class PsrlRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _episodes: int = 0) -> None:
        super().__init__("psrl", spec, transitions, seed)
        memory, draft = fresh_memory(SafePsrl(spec)), empty_draft(spec, certified=False)
        self.tables["counts"] = memory.counts
        self.play = partial(run_psrl, self.problem, self.world, memory, self.ledger, draft, seed)


@compiled
def run_psrl(
    problem: Problem, world: World, memory: Memory, ledger: Ledger, draft: Draft, seed: int, first: int, last: int
) -> None:
    values = np.empty_like(draft.values)
    weights = np.array([1.0, 0.0])
    for k in range(first, last + 1):
        draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, memory.counts, draft.p)
        plan_policy(
            draft.p, world.next_states, world.signals, weights, problem.available, draft.policy, draft.values, draft.stop
        )
        evaluate_policy(world.p, world.next_states, world.signals, draft.policy, values)
        enter(ledger, problem, world, values)
        play_episode(stream_of(seed, k, ENVIRONMENT), problem, world, draft.policy, memory)


class CmdpPsrlRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _episodes: int = 0) -> None:
        super().__init__("cmdp-psrl", spec, transitions, seed)
        counts = no_counts(spec, per_step=not spec.stationary)
        self.keep(counts)
        prior = (spec.dirichlet_prior > 0).astype(np.float64)
        self.play = partial(run_cmdp_psrl, self.problem, self.world, prior, counts, self.ledger, seed)


@compiled
def run_cmdp_psrl(
    problem: Problem, world: World, prior: Floats, counts: Counts, ledger: Ledger, seed: int, first: int, last: int
) -> None:
    horizon, (num_states, num_actions) = world.horizon, problem.available.shape
    p, policy, stop = np.empty(prior.shape), np.empty((horizon, num_states, num_actions)), np.zeros(1, np.bool_)
    known = (p, world.next_states, world.signals, problem.available, problem.initial)
    for k in range(first, last + 1):
        draw_kernel(stream_of(seed, k, POSTERIOR), prior, counts.transitions, p)
        feasible, _ = solve_cmdp(*known, problem.tau[0], policy, stop)
        if not feasible:
            solve_cmdp(*known, UNCONSTRAINED, policy, stop)
        play_randomised(problem, world, policy, counts, ledger, seed, k)
