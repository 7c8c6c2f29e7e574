"""Compiling ahead: calls that leave nothing to compile later."""

from collections.abc import Iterable

from safe_psrl.average_explanation import action_advantages
from safe_psrl.comparison import average_values
from safe_psrl.continuing import ContinuingPsrl
from safe_psrl.continuing_simulation import ContinuingRun
from safe_psrl.explanation import action_values, mixture_of
from safe_psrl.learner import SafePsrl
from safe_psrl.methods.bounds import constraint_regret_bound
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.options import METHODS, SafePsrlOptions
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
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


def warm_up_continuing(methods: Iterable[str] = METHODS) -> None:
    """The same for continuing tasks: `ContinuingPsrl`, `ContinuingRun` and their optimum."""
    for spec in _problems(CONTINUING):
        kernel = (spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True))[0]
        for method in methods:
            learner = ContinuingPsrl(spec, SafePsrlOptions(method))
            state, plan = learner.start_epoch(learner.initial_state(), 0)
            learner.observe(state, Transition(0, 0, learner.act(plan, 0, 0), 0))
            action_advantages(learner, state.learned, plan.probabilities, 0)
            average_values(learner.base, state.learned, plan.probabilities, 0)
            ContinuingRun(learner, kernel).advance(1)


def warm_up_simulation() -> None:
    """The same for the library's `SimulatedRun` and `exact_optimum`, which no service runs."""
    for spec in _problems():
        kernel = (spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True))[0]
        exact_optimum(spec, kernel)
        for method in METHODS:
            SimulatedRun(SafePsrl(spec, SafePsrlOptions(method)), kernel).advance(1)


def _problems(horizon: int | str = 1) -> list[CmdpSpec]:
    """One of one constraint, one of two."""
    limits = [Constraint(name, [[0]], 1, 0) for name in ("one", "other")]
    return [
        CmdpSpec(num_states=1, num_actions=1, horizon=horizon, reward=[[0]], constraints=limits[:count]) for count in (1, 2)
    ]
