"""How long plans of large continuing tasks take, by the processor's clock, so that a busy machine does not matter."""

import time

import numpy as np
import pytest

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


@pytest.mark.slow
@pytest.mark.parametrize("visits", [3, 300])
@pytest.mark.parametrize(("num_states", "listed", "seconds"), [(500, 0, 0.5), (20_000, 8, 10.0)])
def test_a_certified_plan(num_states: int, listed: int, seconds: float, visits: int) -> None:
    warm_up_continuing(["certified"])
    learner = ContinuingPsrl(large_task(num_states, listed), SafePsrlOptions("certified"), 1, always_satisfiable=True)
    state = observed(learner, visits)
    began = time.thread_time()
    plan = learner.plan(state, 0, 0)
    assert time.thread_time() - began < seconds
    assert plan.certificate == "confidence"
