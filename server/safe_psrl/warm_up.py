"""Compiling ahead: one call that leaves nothing to compile later."""

from safe_psrl.learner import SafePsrl, Transition
from safe_psrl.methods.bounds import constraint_regret_bound
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl.simulation import SimulatedRun


def warm_up() -> None:
    """Load every kernel from the cache, or compile it. Takes about a second, or about a minute the first time."""
    one, limits = factored_toy(), [Constraint(name, [[0]], 1, 0) for name in ("one", "other")]
    several = CmdpSpec(num_states=1, num_actions=1, horizon=1, reward=[[0]], constraints=limits)
    constraint_regret_bound(one, 1)
    for spec, method in ((one, "published"), (one, "adaptive"), (several, "adaptive")):
        kernel = (spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True))[0]
        exact_optimum(spec, kernel)
        learner = SafePsrl(spec, SafePsrlOptions(method))
        state, plan = learner.start_episode(learner.initial_state())
        learner.start_episode(learner.observe(state, Transition(0, 0, int(plan.policy[0, 0]), 0)))
        SimulatedRun(learner, kernel).advance(1)
