"""PSRL (Osband, Russo and Van Roy 2013): posterior sampling without a constraint.

Provenance: the paper's algorithm with the dual variable held at 0. Told beyond the data: nothing.
"""

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Draft, Problem, empty_draft
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ENVIRONMENT, POSTERIOR, stream_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, Memory, World, enter, fresh_memory, play_episode
from safe_psrl_experiments.baselines.playing import BaselineRun


class PsrlRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int) -> None:
        super().__init__("psrl", spec, transitions, seed)
        self._memory = fresh_memory(spec)
        self._draft = empty_draft(spec, randomised=False)
        self._tables |= {"counts": self._memory.counts}

    def advance(self, episodes: int) -> None:
        span = self.next_span(episodes)
        run(self.problem, self.world, self._memory, self.ledger, self._draft, self.seed, *span)


@compiled
def run(problem: Problem, world: World, memory: Memory, ledger: Ledger, draft: Draft, seed: int, first: int, last: int) -> None:
    values = np.empty_like(draft.values)
    weights = np.array([1.0, 0.0])
    for k in range(first, last + 1):
        draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, memory.counts, draft.p)
        plan_policy(draft.p, world.next_states, world.signals, weights, problem.available, draft.policy, draft.values)
        evaluate_policy(world.p, world.next_states, world.signals, draft.policy, values)
        enter(ledger, problem, values, world.best_reward)
        play_episode(stream_of(seed, k, ENVIRONMENT), world, draft.policy, memory)
