"""DOPE (Bura, HasanzadeZonuzy, Kalathil, Shakkottai and Chamberland 2022): doubly optimistic and pessimistic exploration.

Provenance: the paper's algorithm with the constants of its published code. Optimistic about the kernel and the reward,
pessimistic about the cost; begins with a safe policy for K0 episodes, and goes back to it where its program is infeasible.
Told beyond the data: the true support of the kernel, a safe policy, and the number of episodes to come.
"""

from safe_psrl.arrays import Floats
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.baselines.optimistic import Manner, OptimisticRun, log_term
from safe_psrl_experiments.baselines.playing import safe_policy


class DopeRun(OptimisticRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        slack = float(spec.cost_budgets[0] - spec.satisfiable_costs[0])
        manner = Manner(
            log_term=log_term(spec, episodes),
            reward_bonus=spec.horizon**2 / slack,
            cost_bonus=float(spec.horizon),
            safe_until=spec.num_states**2 * spec.num_actions * spec.horizon**3 / slack**2,
            safe_policy=safe_policy(spec, transitions),
            safe_if_infeasible=True,
        )
        super().__init__("dope", spec, transitions, seed, manner)
