"""Assumption 1 (paper, section 4): sampled kernels on which no policy reaches c0 are drawn again, within bounds."""

from dataclasses import replace

import numpy as np
import pytest
from tests.safe_psrl.cases import first_plan, random_case, spec_of

from safe_psrl import CmdpSpec, Constraint, InfeasibleError, SafePsrl, SafePsrlOptions, exact_optimum, preset
from safe_psrl.methods.episode import assumption_is_certain
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of


def risky(c0: float, *, learned: bool = False, support: list | None = None) -> CmdpSpec:
    """Two states, one action, three steps: being in state 1 costs 1, and only the kernel decides how often that is."""
    cost = Constraint("cost", [[0.0], [1.0]], 2.5, c0, learned=learned)
    return spec_of(3, [[1.0], [0.0]], cost, dirichlet_prior=1.0, support=support)


def kernels(spec: CmdpSpec, seed: int, draws: int) -> list[np.ndarray]:
    """The first draws of episode 1."""
    generator, drawn = stream_of(seed, 1, POSTERIOR), []
    for _ in range(draws):
        p = np.empty(spec.dirichlet_prior.shape)
        draw_kernel(generator, spec.dirichlet_prior, np.zeros(p.shape, np.int64), p)
        drawn.append(p)
    return drawn


def satisfiable(spec: CmdpSpec, p: np.ndarray) -> bool:
    try:
        exact_optimum(spec, p, spec.satisfiable_costs)
    except InfeasibleError:
        return False
    return True


def test_draws_until_a_kernel_satisfies_the_assumption() -> None:
    """The first satisfiable kernel of the episode's stream is used, and the number of draws is reported."""
    spec = risky(0.2)
    counted = []
    for seed in range(30):
        plan = first_plan(spec, seed=seed)
        drawn = kernels(spec, seed, plan.kernel_draws)
        assert plan.kernel_satisfiable
        assert [satisfiable(spec, p) for p in drawn] == [False] * (len(drawn) - 1) + [True]
        assert plan.predicted_costs[0] <= 0.2 + 1e-9
        assert plan.predicted_costs[0] == pytest.approx(float(exact_optimum(spec, drawn[-1]).costs[0]), abs=1e-12)
        counted.append(plan.kernel_draws)
    assert max(counted) > 1
    assert min(counted) == 1


@pytest.mark.parametrize("limit", [2, 7])
def test_tries_are_bounded_and_failure_is_reported(limit: int) -> None:
    """With data that contradict c0 every draw fails: the last is used after `max_kernel_draws`, and the plan says so."""
    spec = risky(0.2)
    learner = SafePsrl(spec, SafePsrlOptions(max_kernel_draws=limit))
    counts = np.zeros((1, 2, 1, 2))
    counts[..., 1] = 10_000
    _, plan = learner.start_episode(replace(learner.initial_state(), transition_counts=counts))
    assert plan.kernel_draws == limit
    assert not plan.kernel_satisfiable
    assert plan.predicted_costs[0] == pytest.approx(2.0, abs=0.01), "the plan is made all the same"


def test_a_limit_of_one_takes_every_draw() -> None:
    """Nothing is checked, so nothing can be found wrong."""
    plan = first_plan(risky(0.0), SafePsrlOptions(max_kernel_draws=1))
    assert (plan.kernel_draws, plan.kernel_satisfiable) == (1, True)


def test_each_constraint_must_be_satisfiable() -> None:
    """Several constraints: a kernel is refused if any one of them cannot reach its c0."""
    constraints = Constraint("free", [[0.0], [0.0]], 1.0, 0.0), Constraint("risky", [[0.0], [1.0]], 2.5, 0.2)
    spec = spec_of(3, [[1.0], [0.0]], *constraints, dirichlet_prior=1.0)
    draws = []
    for seed in range(20):
        plan = first_plan(spec, seed=seed)
        assert plan.predicted_costs[1] <= 0.2 + 1e-9
        draws.append(plan.kernel_draws)
    assert max(draws) > 1


@pytest.mark.parametrize("name", ["streaming-buffer", "factored-toy"])
def test_presets_need_no_checking(name: str) -> None:
    """Cost is charged by the action there, so every kernel has a policy of cost 0: certain, and one draw an episode."""
    spec = preset(name)
    learner = SafePsrl(spec)
    assert assumption_is_certain(spec)
    assert learner.problem.max_draws == 1
    assert learner.start_episode(learner.initial_state())[1].kernel_draws == 1


@pytest.mark.parametrize(
    ("spec", "certain"),
    [
        (risky(0.2), False),
        (risky(1.99), False),
        (risky(2.0), True),  # from state 0, two costly steps at worst
        (risky(0.0, support=[[[True, False]], [[True, True]]]), True),  # state 1 is out of reach
        (risky(1.0, support=[[[True, True]], [[True, False]]]), True),  # state 1 leads back
        (risky(0.9, support=[[[True, True]], [[True, False]]]), False),
        (risky(0.0, learned=True), True),  # learned costs cannot be checked
    ],
)
def test_certainty_is_the_worst_case_over_the_support(spec: CmdpSpec, certain: bool) -> None:
    """Certain exactly if planning against the worst next state keeps c0."""
    assert assumption_is_certain(spec) == certain


@pytest.mark.parametrize("seed", range(20))
def test_certainty_is_never_wrong(seed: int) -> None:
    """Where it is claimed, kernels drawn from the prior do reach c0."""
    base = random_case(seed, (3, 3, 3), masked=True, binary_costs=True).spec
    limits = Constraint("cost", base.signals[1, 0], 3.0, 1.0)
    masks = {"available_actions": base.available_actions, "support": base.support[0]}
    spec = spec_of(3, base.signals[0, 0], limits, **masks)
    drawn = [satisfiable(spec, p) for p in kernels(spec, seed, 30)]
    assert all(drawn) or not assumption_is_certain(spec)
