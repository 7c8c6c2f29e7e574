"""How long plans of large continuing tasks take, relative to numpy's time for arithmetic of the same size in the same run."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from safe_psrl import ContinuingPsrl, SafePsrlOptions, warm_up_continuing
from safe_psrl.learner import AgentState
from tests.safe_psrl.continuing_cases import large_task


def observed(learner: ContinuingPsrl, visits: int) -> AgentState:
    """After about so many visits of each pair, which lead to at most eight states."""
    state, rng = learner.initial_state().learned, np.random.default_rng(1)
    counts = np.zeros(state.transition_counts.shape)
    _, size, actions, width = counts.shape
    places = rng.integers(0, width, (size, actions, 8)) if width > 8 else np.broadcast_to(np.arange(8), (size, actions, 8))
    np.put_along_axis(counts[0], places, np.round(visits * rng.dirichlet(np.full(8, 0.5), (size, actions))), axis=-1)
    return AgentState(5, state.dual_variables, *state.tables._replace(transition_counts=counts))


def processor_seconds(work: Callable[[], object], times: int) -> float:
    """The median of as many runs of `work`, after a first one."""
    work()
    taken = list[float]()
    for _ in range(times):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return median(taken)


def solution_of(learner: ContinuingPsrl) -> Callable[[], object]:
    """Solves a dense system with an equation for each state."""
    size, rng = learner.spec.num_states, np.random.default_rng(1)
    matrix, values = np.eye(size) + rng.random((size, size)) / size, rng.random(size)
    return lambda: np.linalg.solve(matrix, values)


def product_of(learner: ContinuingPsrl) -> Callable[[], object]:
    """Multiplies the kernel's rows by a value for each state."""
    spec = learner.spec
    rows, places, values = spec.dirichlet_prior[0], spec.next_states[0], np.random.default_rng(1).random(spec.num_states)
    return lambda: (rows * values[places]).sum(axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("visits", [3, 300])
@pytest.mark.parametrize(
    ("num_states", "listed", "reference_of", "most"), [(500, 0, solution_of, 300), (20_000, 8, product_of, 8_000)]
)
def test_a_certified_plan_is_a_number_of_solutions_or_products(
    num_states: int, listed: int, reference_of: Callable[[ContinuingPsrl], Callable[[], object]], most: int, visits: int
) -> None:
    """About a hundred solutions, or some thousand products, are usual."""
    warm_up_continuing(["certified"])
    learner = ContinuingPsrl(large_task(num_states, listed), SafePsrlOptions("certified"), 1, always_satisfiable=True)
    state = observed(learner, visits)
    with threadpool_limits(1):
        reference = processor_seconds(reference_of(learner), 20)
        began = time.thread_time()
        plan = learner.plan(state, 0, 0)
        taken = time.thread_time() - began
    assert taken / reference < most, (taken, reference)
    assert plan.certificate == "confidence"
