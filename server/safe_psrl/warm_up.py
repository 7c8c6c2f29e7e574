"""Compiling ahead: one call that leaves nothing to compile later."""

from safe_psrl.learner import SafePsrl, Transition
from safe_psrl.methods.bounds import constraint_regret_bound
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl.simulation import SimulatedRun


def _with_two_constraints(spec: CmdpSpec) -> CmdpSpec:
    cost, (tau,), (c0,) = spec.signals[1, 0], spec.cost_budgets.tolist(), spec.satisfiable_costs.tolist()
    return CmdpSpec(
        num_states=spec.num_states,
        num_actions=spec.num_actions,
        horizon=spec.horizon,
        reward=spec.signals[0, 0],
        constraints=[Constraint(name, cost, tau, c0) for name in ("one", "other")],
    )


def warm_up() -> None:
    """Load every kernel from the cache, or compile it. Takes about a second, or some two minutes the first time."""
    spec = factored_toy()
    learner = SafePsrl(spec)
    state, plan = learner.start_episode(learner.initial_state())
    learner.start_episode(learner.observe(state, Transition(0, 0, int(plan.policy[0, 0]), 0)))
    adaptive = SafePsrl(spec, SafePsrlOptions("adaptive"))
    adaptive.start_episode(adaptive.initial_state())
    several = SafePsrl(_with_two_constraints(spec), SafePsrlOptions("adaptive"))
    several.start_episode(several.initial_state())
    kernel = spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True)
    exact_optimum(spec, kernel[0])
    constraint_regret_bound(spec, 1)
    for each in (learner, adaptive, several):
        SimulatedRun(each, kernel[0]).advance(1)
