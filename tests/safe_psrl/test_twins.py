"""Compiled kernels and whole runs against their plain numpy twins, which share no formula with them."""

import numpy as np
import pytest

from safe_psrl import SafePsrl, SafePsrlOptions, SimulatedRun, exact_optimum
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ENVIRONMENT, POSTERIOR, generator_of, stream_of, uniform
from safe_psrl_experiments.plain import PlainRun, Stream, backward_induction, policy_value, sampled_kernel
from tests.safe_psrl.cases import named_case, planned, random_case

SEEDS = (0, 1, 2**32, 2**63 - 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("episode", [1, 2, 400_000, 2**40])
def test_streams_are_equal_to_the_bit(seed: int, episode: int) -> None:
    """Compiled and numpy's own form both begin where the plain twin, which mixes its words by itself, begins."""
    for purpose in (POSTERIOR, ENVIRONMENT):
        plain = Stream(seed, episode, purpose)
        numbers = [plain.uniform() for _ in range(50)]
        compiled, generator = stream_of(seed, episode, purpose), generator_of(seed, episode, purpose)
        assert [uniform(compiled) for _ in range(50)] == numbers
        assert generator.random(50).tolist() == numbers


@pytest.mark.parametrize("variant", [{}, {"masked": True}, {"per_step": True}])
def test_kernels_are_equal(variant: dict) -> None:
    """Rows are the same gamma draws, normalised: to 1e-12, for alphas from 0.1 to 2^40."""
    spec = random_case(1, (5, 3, 4), **variant).spec
    counts = (2.0 ** np.random.default_rng(0).integers(0, 41, spec.dirichlet_prior.shape)).astype(np.int64)
    counts[counts < 2**8] = 0
    counts[spec.dirichlet_prior == 0] = 0
    p = np.empty(counts.shape)
    for episode in range(1, 40):
        draw_kernel(stream_of(3, episode, POSTERIOR), spec.dirichlet_prior, counts, p)
        plain = sampled_kernel(Stream(3, episode, POSTERIOR), spec.dirichlet_prior + counts)
        assert abs(p - plain).max() < 1e-12


@pytest.mark.parametrize("num_actions", range(1, 8))
def test_plans_are_equal(num_actions: int) -> None:
    """The same policy and, to 1e-12, the same values."""
    for seed in range(10):
        spec, p = random_case(
            seed, (6, num_actions, 5), masked=seed % 2 == 1, step_signals=seed % 3 == 1, per_step=seed % 3 == 2
        )
        policy, values = planned(spec, p, [1.0, -0.6])
        plain = backward_induction(p, spec.signals[0] - 0.6 * spec.signals[1], spec.available_actions, spec.horizon)
        assert policy.tolist() == plain.tolist()
        for signal, value in zip(spec.signals, values, strict=True):
            assert value == pytest.approx(policy_value(p, signal, plain), abs=1e-12)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy", "two-constraints", "per-step", "masked"])
def test_a_whole_run_equals_its_plain_twin(name: str) -> None:
    """300 episodes: the same policies and counts exactly, duals and regrets to 1e-9."""
    spec, p = named_case(name)
    learner = SafePsrl(spec, SafePsrlOptions(pessimism_coefficient=0.1, max_kernel_draws=1), seed=4)
    run = SimulatedRun(learner, p, environment_seed=5)
    plain = PlainRun(spec, p, run.world.best_reward, k_epsilon=0.1, seed=4, environment_seed=5)
    for _ in range(300):
        state = run.state
        _, plan = learner.start_episode(state)
        run.advance(1)
        assert plan.policy.tolist() == plain.step().tolist()
    assert run.state.transition_counts.tolist() == plain.counts.tolist()
    assert run.dual_variables == pytest.approx(plain.dual, abs=1e-9)
    assert run.ledger.objective_regret[0] == pytest.approx(plain.objective_regret, abs=1e-9)
    assert run.ledger.constraint_regret == pytest.approx(plain.constraint_regret, abs=1e-9)
    assert run.world.best_reward == pytest.approx(exact_optimum(spec, p).reward, abs=0)
