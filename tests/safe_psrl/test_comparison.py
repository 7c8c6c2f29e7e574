"""Values of a policy under the posterior, with the uncertainty of kernel and learned signals, against draws."""

from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions
from safe_psrl.comparison import episode_values, reward_doubt
from safe_psrl.explanation import mixture_of
from safe_psrl.posterior.initial_counts import InitialCounts
from tests.safe_psrl.cases import random_case
from tests.safe_psrl.test_explanation import enumerated, learned_state

DRAWS = 600


@pytest.mark.parametrize("variant", [{}, {"learned": True}, {"per_step": True}, {"num_constraints": 2}])
def test_mean_and_deviation_are_those_of_draws_from_the_posterior(variant: Any) -> None:
    """Kernels from the Dirichlet posterior, learned signals from its Beta; every policy of the mixture on every draw."""
    case = random_case(5, (3, 2, 3), **variant)
    learner = SafePsrl(case.spec, SafePsrlOptions("certified"), 1)
    spec, state, rng = case.spec, learned_state(case, learner, 60, 3), np.random.default_rng(4)
    mixture, shares = mixture_of(learner.plan(state))
    found = episode_values(learner, state, mixture, shares)
    weights, start = spec.dirichlet_prior + state.transition_counts, spec.initial_distribution
    drawn = []
    for _ in range(DRAWS):
        kernel = rng.gamma(weights)
        kernel /= np.maximum(kernel.sum(axis=-1, keepdims=True), 1e-300)
        signals = spec.signals
        if spec.learns_signals:
            beta = rng.beta(1 + state.signal_sums, 1 + np.maximum(state.visits - state.signal_sums, 0))
            signals = np.where(spec.learned, beta, spec.signals)
        drawn.append(
            sum(
                share * start[s] * enumerated(signals, kernel, policy, 0, s)
                for policy, share in zip(mixture, shares, strict=True)
                for s in np.flatnonzero(start)
            )
        )
    assert found.means == pytest.approx(np.mean(drawn, axis=0), abs=0.06)
    assert found.sigmas == pytest.approx(np.std(drawn, axis=0), rel=0.15, abs=1e-9)


def test_what_was_never_seen_is_as_uncertain_as_a_number_from_0_to_1() -> None:
    spec = CmdpSpec(
        num_states=1,
        num_actions=1,
        horizon=4,
        reward=[[0.5]],
        reward_learned=True,
        constraints=[Constraint("energy", [[0.25]], 2.0, 1.5)],
    )
    learner = SafePsrl(spec, SafePsrlOptions("certified"))
    state = learner.initial_state()
    found = episode_values(learner, state, *mixture_of(learner.plan(state)))
    assert found.means.tolist() == [2.0, 1.0]
    assert found.sigmas == pytest.approx([4 / np.sqrt(12), 0.0])


def test_a_plan_that_rests_on_the_prior_is_doubted() -> None:
    """Action 1 was never seen, and may lead to the state without reward for good; action 0 was seen often."""
    spec = CmdpSpec(
        num_states=2,
        num_actions=2,
        horizon=4,
        reward=[[0.0, 0.0], [1.0, 1.0]],
        constraints=[Constraint("energy", [[0.0, 0.0], [0.0, 0.0]], 2.0, 1.5)],
        initial_distribution=[0.0, 1.0],
    )
    learner = SafePsrl(spec, SafePsrlOptions("certified"))
    counts = np.zeros((1, 2, 2, 2))
    counts[0, :, 0, 1] = 1e6
    state = learner.initial_state(InitialCounts(counts))
    known, unseen = (np.full((1, 4, 2), action, np.int32) for action in (0, 1))
    assert reward_doubt(learner, state, known, np.ones(1)) == pytest.approx(0.0, abs=1e-9)
    assert reward_doubt(learner, state, unseen, np.ones(1)) == pytest.approx(2.5 - 1.0), "1 is certain, 2.5 expected"
    both = np.concatenate([known, unseen])
    assert reward_doubt(learner, state, both, np.array([0.75, 0.25])) == pytest.approx(0.25 * 1.5)
