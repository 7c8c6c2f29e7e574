"""OptCMDP (Efroni, Mannor and Pirotta 2020): optimism about the kernel, nothing else.

Provenance: the paper's algorithm with the confidence widths and the program of DOPE's published code, its signals as they
are. Where the program is infeasible, the least cost in the box is played. Told beyond the data: the true support of the
kernel, and the number of episodes to come.
"""

from safe_psrl.arrays import Floats
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.baselines.optimistic import Manner, OptimisticRun, log_term
from safe_psrl_experiments.baselines.playing import safe_policy


class OptCmdpRun(OptimisticRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        manner = Manner(
            log_term=log_term(spec, episodes),
            reward_bonus=0.0,
            cost_bonus=0.0,
            safe_until=-1.0,
            safe_policy=safe_policy(spec, transitions),
            safe_if_infeasible=False,
        )
        super().__init__("optcmdp", spec, transitions, seed, manner)
