"""The safe baseline: the true optimum at budget c0, for ever.

Provenance: the policy that DOPE and OptPess-LP are given to begin with (Bura et al. 2022; Liu et al. 2021). It learns
nothing. Told beyond the data: the safe policy itself.
"""

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.planning.evaluation import evaluate_randomised
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import enter
from safe_psrl_experiments.baselines.playing import BaselineRun, safe_policy


class SafeBaselineRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int) -> None:
        super().__init__("safe-baseline", spec, transitions, seed)
        self._values = np.empty((2, spec.num_states))
        evaluate_randomised(
            self.world.p, self.world.next_states, self.world.signals, safe_policy(spec, transitions), self._values
        )

    def advance(self, episodes: int) -> None:
        first, last = self.next_span(episodes)
        for _ in range(first, last + 1):
            enter(self.ledger, self.problem, self._values, self.world.best_reward)
