"""Safe PSRL: posterior sampling for constrained MDPs with bounded constraint violation. The algorithm, without I/O.

The paper's symbols and our names:

    lambda_k         dual_variable          eta_k           dual_scale
    epsilon_k        pessimism              lambda_k/eta_k  cost_price
    tau              cost_budget            c0              satisfiable_cost
    K_eps            pessimism_coefficient  p_k             the sampled kernel, Draft.p
    alpha            dirichlet_prior + transition_counts
    n(s,a,s')        transition_counts      r, c            signals (the reward first, then each cost)
    k                episode, from 1        h               step, from 0
    S, A, H, M       num_states, num_actions, horizon, num_constraints

Axes are always in the order constraint or signal, step, state, action, next state.
"""

from safe_psrl.continuing import ContinuingPsrl, ContinuingState, EpochPlan
from safe_psrl.continuing_simulation import ContinuingRun
from safe_psrl.errors import InfeasibleError, SafePsrlError, SpecError, TransitionError
from safe_psrl.learner import AgentState, Plan, SafePsrl, act
from safe_psrl.methods.bounds import constraint_regret_bound, dual_variable_bound, feasibility_episode, psrl_term
from safe_psrl.planning.optimum import Optimum, exact_optimum
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.options import PESSIMISM_PRESETS, DriftOptions, SafePsrlOptions
from safe_psrl.problem.presets import PRESETS, preset
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import SimulatedRun
from safe_psrl.transition import Transition
from safe_psrl.version import __version__
from safe_psrl.warm_up import warm_up, warm_up_continuing, warm_up_simulation

__all__ = [
    "PESSIMISM_PRESETS",
    "PRESETS",
    "AgentState",
    "CmdpSpec",
    "Constraint",
    "ContinuingPsrl",
    "ContinuingRun",
    "ContinuingState",
    "DriftOptions",
    "EpochPlan",
    "InfeasibleError",
    "InitialCounts",
    "Optimum",
    "Plan",
    "SafePsrl",
    "SafePsrlError",
    "SafePsrlOptions",
    "SimulatedRun",
    "SpecError",
    "Transition",
    "TransitionError",
    "__version__",
    "act",
    "constraint_regret_bound",
    "dual_variable_bound",
    "exact_optimum",
    "feasibility_episode",
    "preset",
    "psrl_term",
    "warm_up",
    "warm_up_continuing",
    "warm_up_simulation",
]
