"""Compiling ahead: calls that leave nothing to compile later."""

from collections.abc import Iterable

from safe_psrl.explanation import action_values, mixture_of
from safe_psrl.learner import SafePsrl
from safe_psrl.methods.bounds import constraint_regret_bound
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.problem.options import METHODS, SafePsrlOptions
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl.simulation import SimulatedRun
from safe_psrl.transition import Transition


def warm_up(methods: Iterable[str] = METHODS) -> None:
    """Load every kernel with which agents of `methods` learn, or compile it.

    Takes about a second; the first time 10 s for the paper's methods, and about a minute for all.
    """
    constraint_regret_bound(factored_toy(), 1)
    for method in methods:
        for spec in _problems():
            learner = SafePsrl(spec, SafePsrlOptions(method))
            state, plan = learner.start_episode(learner.initial_state())
            learner.start_episode(learner.observe(state, Transition(0, 0, int(plan.policy[0, 0]), 0)))
            learner.expected_values(state, plan)
            action_values(learner, state, *mixture_of(plan), 0, 0)


def warm_up_simulation() -> None:
    """The same for the library's `SimulatedRun` and `exact_optimum`, which no service runs."""
    for spec in _problems():
        kernel = (spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True))[0]
        exact_optimum(spec, kernel)
        for method in METHODS:
            SimulatedRun(SafePsrl(spec, SafePsrlOptions(method)), kernel).advance(1)


def _problems() -> tuple[CmdpSpec, CmdpSpec]:
    """One of one constraint, one of two."""
    limits = [Constraint(name, [[0]], 1, 0) for name in ("one", "other")]
    return factored_toy(), CmdpSpec(num_states=1, num_actions=1, horizon=1, reward=[[0]], constraints=limits)
