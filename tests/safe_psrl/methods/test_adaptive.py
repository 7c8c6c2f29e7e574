"""The adaptive method: its options, its plans against the exact optimum of the sampled problem, and whole runs."""

import numpy as np
import pytest
from tests.safe_psrl.cases import TWO_CONSTRAINTS, first_plan, named_case, random_case, spec_of

from safe_psrl import (
    CmdpSpec,
    Constraint,
    InfeasibleError,
    SafePsrl,
    SafePsrlOptions,
    SimulatedRun,
    SpecError,
    exact_optimum,
    preset,
)
from safe_psrl.learner import AgentState
from safe_psrl.methods.adaptive import realise_step
from safe_psrl.planning.optimum import Optimum
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.posterior.uncertainty import cost_deviation, smoothed_mean
from safe_psrl.problem.documents import options_from_document, options_to_document
from safe_psrl_experiments.runs import Job, run_job
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.kernels import KERNELS

ADAPTIVE = SafePsrlOptions("adaptive")
ONE_DRAW = SafePsrlOptions("adaptive", confidence=2, max_kernel_draws=1)
NAMES = ["streaming-buffer", "inventory", "factored-toy", "per-step", "masked"]


def best_or_least(spec: CmdpSpec, p: np.ndarray, budget: float) -> tuple[bool, Optimum]:
    """Whether the budget can be kept, and the exact optimum within it, or within the least cost."""
    try:
        return True, exact_optimum(spec, p, [budget])
    except InfeasibleError as error:
        return False, exact_optimum(spec, p, error.least_costs)


def test_methods_by_name() -> None:
    """Those of the paper are coefficients; the adaptive one has none. `published` is the default."""
    assert SafePsrlOptions() == SafePsrlOptions("published") == SafePsrlOptions(pessimism_coefficient=0.05)
    for name, coefficient in {"theorem": 5.0, "published": 0.05, "literal": 0.25}.items():
        assert (SafePsrlOptions(name).pessimism_coefficient, SafePsrlOptions(name).is_adaptive) == (coefficient, False)
    assert (ADAPTIVE.is_adaptive, ADAPTIVE.confidence) == (True, 2.5)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"method": "adaptiv"}, "method = 'adaptiv': must be one of theorem, published, literal, adaptive"),
        ({"method": 3}, "method = 3: must be one of"),
        ({"method": "adaptive", "pessimism_coefficient": 0.05}, "pessimism_coefficient = 0.05: belongs to the paper's"),
        ({"method": "adaptive", "pessimism_coefficient": "theorem"}, "pessimism_coefficient = 'theorem': belongs"),
        ({"method": "adaptive", "cap_pessimism": False}, "cap_pessimism = False: belongs to the paper's"),
        ({"confidence": 2.0}, "confidence = 2: belongs to the adaptive method"),
        ({"method": "theorem", "confidence": 1}, "confidence = 1: belongs to the adaptive method"),
        ({"method": "adaptive", "confidence": -1}, "confidence = -1: must not be negative"),
        ({"method": "adaptive", "confidence": "high"}, "confidence = 'high': must be a number"),
        ({"method": "adaptive", "confidence": float("nan")}, "confidence = nan: must be finite"),
        ({"method": "adaptive", "confidense": 1}, "did you mean confidence"),
        ({"pessimism_coeficient": 1}, r"pessimism_coeficient = 1: is not a field; did you mean pessimism_coefficient\?"),
    ],
)
def test_options_that_do_not_belong_are_refused(document: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        options_from_document(document)


@pytest.mark.parametrize(
    "options",
    [
        SafePsrlOptions(),
        SafePsrlOptions("theorem", cap_pessimism=True),
        SafePsrlOptions("published", pessimism_coefficient=0.3, max_kernel_draws=7),
        ADAPTIVE,
        SafePsrlOptions("adaptive", confidence=3, max_kernel_draws=1),
    ],
)
def test_options_go_through_documents(options: SafePsrlOptions) -> None:
    """A document has what its method has, and nothing of the other's."""
    document = options_to_document(options)
    assert options_from_document(document) == options
    assert ("confidence" in document) == options.is_adaptive == ("pessimism_coefficient" not in document)


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_the_exact_optimum_of_the_sample_within_the_tightened_budget(name: str) -> None:
    """epsilon_k = min(z sigma, 0.9 tau), sigma that of the sample's optimum at tau; then the optimum at tau - epsilon_k."""
    spec, p = named_case(name)
    learner = SafePsrl(spec, ONE_DRAW, seed=3)
    run = SimulatedRun(learner, p, environment_seed=4)
    none = np.zeros((0, spec.num_states, spec.num_actions), np.int64)
    tau, kept = float(spec.cost_budgets[0]), 0
    for _ in range(25):
        counts = run.state.transition_counts
        _, plan = learner.start_episode(run.state)
        sample = np.empty(counts.shape)
        draw_kernel(stream_of(3, plan.episode, POSTERIOR), spec.dirichlet_prior, counts, sample)
        mean, weight = smoothed_mean(spec.dirichlet_prior, counts, 2.0**2)
        loose = best_or_least(spec, sample, tau)[1].policy
        sigma = cost_deviation(mean, spec.next_states, weight, spec.signals[1], loose, spec.initial_distribution, none)
        assert plan.pessimism[0] == pytest.approx(min(2 * sigma, 0.9 * tau), rel=1e-9)
        feasible, best = best_or_least(spec, sample, tau - plan.pessimism[0])
        kept += feasible
        assert plan.predicted_costs == pytest.approx(best.costs, abs=1e-9)
        if feasible:
            assert plan.predicted_costs[0] <= tau - plan.pessimism[0] + 1e-9
            assert plan.predicted_reward == pytest.approx(best.reward, abs=1e-9)
        run.advance(12)
    assert kept > 5


def test_a_budget_that_cannot_be_kept_gives_the_least_cost() -> None:
    """Every action costs at least 0.4 a step, so with pessimism at its ceiling nothing keeps a budget of 3 in 5 steps."""
    reward = np.array([[0.1, 0.9]] * 3)
    cost = np.array([[0.4, 1.0]] * 3)
    spec = spec_of(5, reward, Constraint("cost", cost, 3.0, 2.0))
    reckless, careful = (
        SafePsrl(spec, SafePsrlOptions("adaptive", confidence=confidence), seed=1) for confidence in (0.0, 1e9)
    )
    _, plan = careful.start_episode(careful.initial_state())
    assert plan.predicted_costs[0] == pytest.approx(2.0, abs=1e-9)
    assert plan.predicted_reward == pytest.approx(0.5, abs=1e-9)
    _, plan = reckless.start_episode(reckless.initial_state())
    assert plan.predicted_costs[0] == pytest.approx(3.0, abs=1e-9)
    assert plan.pessimism.tolist() == [0.0]


@pytest.mark.parametrize("name", [*NAMES, "two-constraints"])
def test_probabilities_are_distributions_over_available_actions(name: str) -> None:
    """And the actions that an episode plays are among those with a probability."""
    spec, p = named_case(name)
    learner = SafePsrl(spec, ADAPTIVE, seed=1)
    run = SimulatedRun(learner, p, environment_seed=2)
    for _ in range(15):
        _, plan = learner.start_episode(run.state)
        run.advance(1)
        assert plan.probabilities is not None
        assert plan.probabilities.sum(axis=-1) == pytest.approx(1.0, abs=1e-9)
        assert plan.probabilities.min() >= 0
        assert not plan.probabilities[:, ~spec.available_actions].any()
        chosen = np.take_along_axis(plan.probabilities, plan.policy[..., None].astype(np.int64), axis=-1)
        assert chosen.min() > 0
        assert plan.dual_variables.tolist() == plan.next_dual_variables.tolist() == [0.0] * spec.num_constraints


def test_several_budgets_are_kept_together() -> None:
    """By linear programs, to their tolerance: each predicted cost within its own tightened budget."""
    learner = SafePsrl(TWO_CONSTRAINTS, ADAPTIVE, seed=1)
    run = SimulatedRun(learner, KERNELS["streaming-buffer"](), environment_seed=2)
    run.advance(40)
    _, plan = learner.start_episode(run.state)
    assert plan.pessimism.shape == (2,)
    assert 0 < plan.pessimism[0] < 4.5
    assert plan.pessimism[0] != plan.pessimism[1]
    excess = plan.predicted_costs - (TWO_CONSTRAINTS.cost_budgets - plan.pessimism)
    assert excess.max() <= 1e-6 or excess == pytest.approx(np.full(2, excess.max()), abs=1e-6)


def test_several_budgets_that_cannot_be_kept_are_exceeded_by_as_little_as_possible() -> None:
    """Four steps cost 1 each, to one or the other: with no pessimism, 1.5 and 1.5 become 2 and 2."""
    constraints = [Constraint("a", [[1.0, 0.0]], 1.5, 0.0), Constraint("b", [[0.0, 1.0]], 1.5, 0.0)]
    spec = spec_of(4, [[1.0, 0.0]], *constraints)
    plan = first_plan(spec, ADAPTIVE)
    assert plan.pessimism.tolist() == [0.0, 0.0]  # one state: the kernel is certain
    assert plan.predicted_costs == pytest.approx([2.0, 2.0], abs=1e-6)


def test_the_same_state_gives_the_same_plan() -> None:
    """Actions are a function of (seed, episode): asked again, an agent plays the same; another seed plays otherwise."""
    spec, p = preset("streaming-buffer"), KERNELS["streaming-buffer"]()
    learner = SafePsrl(spec, ADAPTIVE, seed=1)
    run = SimulatedRun(learner, p, environment_seed=1)
    run.advance(300)
    first, again = (learner.start_episode(run.state)[1] for _ in range(2))
    assert first.policy.tobytes() == again.policy.tobytes()
    assert first.probabilities is not None
    assert again.probabilities is not None
    assert first.probabilities.tobytes() == again.probabilities.tobytes()
    other = SafePsrl(spec, ADAPTIVE, seed=2).start_episode(run.state)[1]
    assert other.policy.tobytes() != first.policy.tobytes()


def test_played_actions_have_their_probabilities() -> None:
    """Over 3,000 episodes each pair is played as often as its probabilities say, to four standard deviations."""
    spec, p = preset("streaming-buffer"), KERNELS["streaming-buffer"]()
    learner = SafePsrl(spec, ADAPTIVE, seed=1)
    run = SimulatedRun(learner, p, environment_seed=1)
    surplus, variance = np.zeros((10, 10, 2)), np.zeros((10, 10, 2))
    for _ in range(3_000):
        run.advance(1)
        chances = run.draft.probabilities
        surplus += (np.arange(2) == run.draft.policy[..., None]) - chances
        variance += chances * (1 - chances)
    assert (variance > 5).sum() > 20  # enough of them are random
    often, never = variance > 5, variance < 1e-9
    assert (abs(surplus) <= 4 * np.sqrt(variance))[often].all()
    assert (abs(surplus) <= 8 / 3 + np.sqrt(64 / 9 + 16 * variance)).all()  # rare pairs: Bernstein's bound, as improbable
    assert (abs(surplus) <= 1e-6)[never].all()


def test_a_uniform_number_falls_on_an_action() -> None:
    """By the running sum of the probabilities; rounding at the end goes to the last possible action."""
    chances, policy = np.array([[[0.2, 0.0, 0.5, 0.3], [0.0, 1.0, 0.0, 0.0]]]), np.zeros((1, 2), np.int32)
    for uniform, action in ((0.0, 0), (0.19, 0), (0.21, 2), (0.69, 2), (0.71, 3), (1 - 1e-16, 3)):
        realise_step(chances, policy, 0, uniform)
        assert policy.tolist() == [[action, 1]]
    realise_step(np.array([[[0.5, 0.5 - 1e-12, 0.0]]]), policy[:, :1], 0, 1 - 1e-16)
    assert policy[0, 0] == 1


def test_a_learned_cost_is_kept_with_more_caution() -> None:
    """The same problem and counts: what is not known of the cost adds to the pessimism."""
    known, p = random_case(6, (4, 3, 5))
    learned, _ = random_case(6, (4, 3, 5), learned=True)
    run = SimulatedRun(SafePsrl(learned, ONE_DRAW, seed=2), p, environment_seed=9)
    run.advance(500)
    state = run.state
    blank = SafePsrl(known, ONE_DRAW, seed=2).initial_state()
    same = AgentState(state.episode, blank.dual_variables, state.transition_counts, blank.signal_sums, blank.visits)
    certain = SafePsrl(known, ONE_DRAW, seed=2).start_episode(same)[1]
    uncertain = SafePsrl(learned, ONE_DRAW, seed=2).start_episode(state)[1]
    assert uncertain.pessimism[0] > certain.pessimism[0] > 0


def regrets(environment: str, algorithm: str, episodes: int, seeds: int) -> tuple[list[float], list[float]]:
    """Objective regret at the end, and the greatest constraint regret ever reached, by seed."""
    jobs = [Job(environment, algorithm, seed, episodes) for seed in range(1, seeds + 1)]
    ends = [run_job(job, lambda _: None, lambda: False).rows[-1] for job in jobs]
    return [end["objective_regret"] for end in ends], [end["constraint_regret_max"] for end in ends]


@pytest.mark.slow
def test_the_streaming_buffer() -> None:
    """100,000 episodes, where the published setting has an objective regret of 26,600."""
    objective, greatest = regrets("streaming-buffer", "safe-psrl-adaptive", 100_000, 2)
    assert max(objective) < 2_500
    assert max(greatest) <= 10


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["inventory", "factored-toy", *(f"random:seed={seed}" for seed in (5, 7, 10))])
def test_far_less_regret_than_the_published_setting(environment: str) -> None:
    """A twenty-fifth at most after 100,000 episodes, and the constraint regret never above one horizon."""
    objective, greatest = regrets(environment, "safe-psrl-adaptive", 100_000, 1)
    published, _ = regrets(environment, "safe-psrl", 100_000, 1)
    assert objective[0] <= published[0] / 25
    assert max(greatest) <= scenario_named(environment).spec.horizon
