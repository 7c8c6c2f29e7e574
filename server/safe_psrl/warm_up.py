"""Compiling ahead: one call that leaves nothing to compile later."""

from safe_psrl.learner import SafePsrl, Transition
from safe_psrl.optimum import exact_optimum
from safe_psrl.options import SafePsrlOptions
from safe_psrl.presets import factored_toy
from safe_psrl.simulation import SimulatedRun


def warm_up() -> None:
    """Load every kernel from the cache, or compile it. Takes about a second, or half a minute the first time."""
    spec = factored_toy()
    learner = SafePsrl(spec)
    state, plan = learner.start_episode(learner.initial_state())
    learner.start_episode(learner.observe(state, Transition(0, 0, int(plan.policy[0, 0]), 0)))
    adaptive = SafePsrl(spec, SafePsrlOptions("adaptive"))
    adaptive.start_episode(adaptive.initial_state())
    kernel = spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True)
    exact_optimum(spec, kernel[0])
    for each in (learner, adaptive):
        SimulatedRun(each, kernel[0]).advance(1)
