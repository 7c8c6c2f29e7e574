"""Compiling ahead: nothing that a service or a simulation calls compiles any more."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import safe_psrl
from safe_psrl import (
    AgentState,
    CmdpSpec,
    SafePsrl,
    SafePsrlOptions,
    SimulatedRun,
    Transition,
    exact_optimum,
    warm_up,
    warm_up_simulation,
)
from safe_psrl.explanation import BUDGET_FACTORS, action_values, exchange_rate, mixture_of, plan_with_budgets
from tests.safe_psrl.cases import listed_case, named_case, random_case

ROOT: Final = Path(__file__).parents[2]


def signatures() -> dict[str, int]:
    """How many versions of each compiled function exist by now."""
    counted = {}
    for module in pkgutil.walk_packages(safe_psrl.__path__, "safe_psrl."):
        for name, thing in vars(importlib.import_module(module.name)).items():
            if isinstance(thing, Dispatcher):
                counted[f"{thing.__module__}.{name}"] = len(thing.signatures)
    return counted


@pytest.fixture(scope="module")
def warm() -> dict[str, int]:
    warm_up()
    warm_up_simulation()
    return signatures()


def play(spec: CmdpSpec, kernel: np.ndarray) -> None:
    """Everything that the service and the experiments do with a problem."""
    for options in (SafePsrlOptions(pessimism_coefficient=1, cap_pessimism=True), SafePsrlOptions("certified")):
        learner = SafePsrl(spec, options, seed=7)
        state, plan = learner.start_episode(learner.initial_state())
        action = int(plan.policy[0, 0])
        seen = Transition(0, 0, action, int(kernel[0, action].argmax()), 0.5, (0.5,) * spec.num_constraints)
        state = learner.settle(learner.observe(state, seen))
        learner.start_episode(state)
        explain(learner, state)
        if not (options.is_certified and spec.num_constraints > 1):  # not compiled as a whole
            SimulatedRun(learner, kernel).advance(2)
    exact_optimum(spec, kernel, [spec.horizon] * spec.num_constraints)


def explain(learner: SafePsrl, state: AgentState) -> None:
    plans = [plan_with_budgets(learner, state, factor) for factor in BUDGET_FACTORS]
    plan = next(plan for plan in plans if plan is not None)
    learner.expected_values(state, plan)
    mixture, shares = mixture_of(plan)
    exchange_rate(learner, state, mixture, shares)
    for step in range(min(2, learner.spec.horizon)):
        action_values(learner, state, mixture, shares, step, 0)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy", "two-constraints"])
def test_presets_compile_nothing_more(warm: dict[str, int], name: str) -> None:
    """The first episode of another preset finds every kernel ready, masks or not; several duals have the types of one."""
    assert warm["safe_psrl.methods.episode.begin_episode"] > 0
    spec, p = named_case(name)
    play(spec, p[0])
    assert signatures() == warm


@pytest.mark.parametrize("variant", [{}, {"per_step": True}, {"num_constraints": 2}])
def test_listed_next_states_compile_nothing_more(warm: dict[str, int], variant: dict) -> None:
    """To the compiler, a problem over all next states is one whose lists have no rows."""
    spec, p = listed_case(random_case(1, (4, 3, 2), masked=True, **variant))
    for options in (SafePsrlOptions(), SafePsrlOptions("certified")):
        learner = SafePsrl(spec, options)
        state, plan = learner.start_episode(learner.initial_state())
        action = int(plan.policy[0, 0])
        after = int(spec.next_states[0, 0, action, 0])
        state = learner.settle(learner.observe(state, Transition(0, 0, action, after)))
        learner.start_episode(state)
        explain(learner, state)
        SimulatedRun(learner, p).advance(2)
    exact_optimum(spec, p, [spec.horizon] * spec.num_constraints)
    assert signatures() == warm


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ((1, 1, 1), {}),
        ((1, 3, 2), {"learned": True}),
        ((4, 3, 5), {"learned": True, "num_constraints": 2}),
        ((4, 3, 5), {"per_step": True, "step_signals": True, "masked": True}),
        ((3, 1, 4), {"per_step": True, "step_signals": True, "learned": True}),
    ],
)
def test_variants_compile_nothing_more(warm: dict[str, int], sizes: tuple[int, int, int], variant: dict) -> None:
    """Learned signals, per-step kernels and edge sizes are the same types to the compiler."""
    spec, p = random_case(1, sizes, **variant)
    learner = SafePsrl(spec)
    state, plan = learner.start_episode(learner.initial_state())
    action = int(plan.policy[0, 0])
    seen = Transition(0, 0, action, int(p[0, 0, action].argmax()), 0.5, (0.5,) * spec.num_constraints)
    state = learner.settle(learner.observe(state, seen))
    learner.start_episode(state)
    explain(learner, state)
    exact_optimum(spec, p, [spec.horizon] * spec.num_constraints)
    SimulatedRun(learner, p, true_signals=spec.signals.copy()).advance(2)
    assert signatures() == warm


def loaded(call: str) -> set[str]:
    """The kernels that a new process has loaded or compiled after `call`."""
    code = f"import safe_psrl\nfrom tests.safe_psrl.test_warm_up import signatures\nsafe_psrl.{call}\n"
    code += "print(*(name for name, count in signatures().items() if count))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_a_service_loads_only_the_kernels_of_its_methods() -> None:
    """Fewer for one method than for all, and none that only simulations run."""
    of_one, of_all = loaded('warm_up(["published"])'), loaded("warm_up()")
    assert "safe_psrl.methods.episode.begin_episode" in of_one < of_all
    assert not any(name.startswith("safe_psrl.simulation.") for name in of_all)
