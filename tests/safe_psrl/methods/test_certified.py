"""The method `certified`: its options, its certificates against plain arithmetic and hostile kernels, and whole runs."""

import math
from dataclasses import replace
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from tests.safe_psrl.cases import TWO_CONSTRAINTS, first_plan, named_case, random_case, spec_of

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions, SimulatedRun, SpecError, preset
from safe_psrl.errors import PlanStoppedError
from safe_psrl.learner import Plan
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.problem.documents import options_from_document, options_to_document
from safe_psrl.transition import Transition
from safe_psrl_experiments.runs import Job, run_job
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.kernels import KERNELS

CERTIFIED = SafePsrlOptions("certified")
Z = NormalDist().inv_cdf(0.98)
NAMES = ["streaming-buffer", "inventory", "factored-toy", "per-step", "masked"]


def test_methods_by_name() -> None:
    """Those of the paper are coefficients; `certified` has a confidence. `published` is the library's default."""
    assert SafePsrlOptions() == SafePsrlOptions("published") == SafePsrlOptions(pessimism_coefficient=0.05)
    for name, coefficient in {"theorem": 5.0, "published": 0.05, "literal": 0.25}.items():
        assert (SafePsrlOptions(name).pessimism_coefficient, SafePsrlOptions(name).is_certified) == (coefficient, False)
    assert (CERTIFIED.is_certified, CERTIFIED.confidence) == (True, 0.98)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"method": "certifed"}, "method = 'certifed': must be one of certified, theorem, published, literal"),
        ({"method": 3}, "method = 3: must be one of"),
        ({"method": "certified", "pessimism_coefficient": 0.05}, "pessimism_coefficient = 0.05: belongs to the paper's"),
        ({"method": "certified", "pessimism_coefficient": "theorem"}, "pessimism_coefficient = 'theorem': belongs"),
        ({"method": "certified", "max_kernel_draws": 1}, "max_kernel_draws = 1: belongs to the paper's algorithm: set method"),
        ({"method": "certified", "cap_pessimism": False}, "cap_pessimism = False: belongs to the paper's"),
        ({"confidence": 0.9}, "confidence = 0.9: belongs to the method certified"),
        ({"method": "theorem", "confidence": 0.9}, "confidence = 0.9: belongs to the method certified"),
        ({"method": "certified", "confidence": 0.5}, "confidence = 0.5: must be a probability above 0.5 and below 1"),
        ({"method": "certified", "confidence": 1}, "confidence = 1: must be a probability above 0.5 and below 1"),
        ({"method": "certified", "confidence": 2.5}, "confidence = 2.5: must be a probability"),
        ({"method": "certified", "confidence": "high"}, "confidence = 'high': must be a number"),
        ({"method": "certified", "confidence": float("nan")}, "confidence = nan: must be finite"),
        ({"method": "certified", "confidense": 1}, "did you mean confidence"),
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
        CERTIFIED,
        SafePsrlOptions("certified", confidence=0.9),
    ],
)
def test_options_go_through_documents(options: SafePsrlOptions) -> None:
    """A document has what its method has, and nothing of the other's."""
    document = options_to_document(options)
    assert options_from_document(document) == options
    assert ("confidence" in document) == options.is_certified == ("pessimism_coefficient" not in document)


# --- certificates, by plain arithmetic


def gradients(spec: CmdpSpec, mean: np.ndarray, doubt: np.ndarray, policy: np.ndarray) -> tuple[float, np.ndarray]:
    """The cautious cost of a policy, and G(s,a,.) for a stationary kernel."""
    ahead = [np.zeros(spec.num_states)]
    states = np.arange(spec.num_states)
    for h in range(spec.horizon - 1, -1, -1):
        rows, doubts = mean[states, policy[h]], doubt[states, policy[h]]
        worst = np.where(rows > 0, ahead[0], 0.0).max(axis=-1)
        cost = spec.signals[1, h % len(spec.signals[1]), states, policy[h]]
        ahead.insert(0, cost + (1 - doubts) * (rows @ ahead[0]) + doubts * worst)
    gain, reached = np.zeros(mean.shape), spec.initial_distribution
    for h in range(spec.horizon):
        for s in states:
            gain[s, policy[h, s]] += reached[s] * ahead[h + 1]
        reached = reached @ mean[states, policy[h]]
    return float(spec.initial_distribution @ ahead[0]), gain


def plain_bounds(spec: CmdpSpec, counts: np.ndarray, plan: Plan, *, doubtful: bool) -> tuple[float, float, float]:
    """U of the plan's mixture, its cost in the worst case, and the mixture of its parts' lower bounds."""
    confident, worst = mixture_bounds(spec, counts, plan.mixture, plan.shares, doubtful=doubtful)
    parts = [mixture_bounds(spec, counts, part[None], np.ones(1), doubtful=doubtful) for part in plan.mixture]
    return confident, worst, float(np.dot(plan.shares, np.min(parts, axis=-1)))


def mixture_bounds(
    spec: CmdpSpec, counts: np.ndarray, mixture: np.ndarray, shares: np.ndarray, *, doubtful: bool
) -> tuple[float, float]:
    alpha = (spec.dirichlet_prior + counts)[0]
    weight = alpha.sum(axis=-1)
    mean = alpha / np.where(weight > 0, weight, 1.0)[..., None]
    doubt = (1 + counts[0].sum(axis=-1) / 8.0) ** -2.0 * doubtful
    parts = [gradients(spec, mean, doubt, policy) for policy in mixture]
    gain = np.tensordot(shares, [gain for _, gain in parts], axes=1)
    centred = gain - (mean * gain).sum(axis=-1, keepdims=True)
    sigma = math.sqrt(((mean * centred**2).sum(axis=-1) / (weight + 1)).sum())
    worst = [gradients(spec, mean, np.ones_like(doubt), policy)[0] for policy in mixture]
    return float(np.dot(shares, [cost for cost, _ in parts])) + Z * sigma, float(np.dot(shares, worst))


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy", "masked", "random"])
def test_the_certificate_is_the_bound_of_what_is_played(name: str) -> None:
    """And, where two policies are mixed by confidence, exactly the budget: no share of the costly one is given away."""
    spec, p = random_case(5, (5, 3, 6)) if name == "random" else named_case(name)
    learner = SafePsrl(spec, CERTIFIED, seed=3)
    run = SimulatedRun(learner, p, environment_seed=4)
    tau, bases = float(spec.cost_budgets[0]), set()
    for episodes in (0, 1, 3, 10, 30, 100, 300, 1_000):
        run.advance(episodes)
        counts = run.state.transition_counts
        plan = learner.plan(run.state)
        assert plan.certified_costs is not None
        certified = float(plan.certified_costs[0])
        doubtful = name != "random"  # the random problem has no policy that is certain to keep its budget
        confident, worst, mixed = plain_bounds(spec, counts, plan, doubtful=doubtful)
        bases.add(plan.certificate)
        if plan.certificate == "certain":
            assert worst <= certified + 1e-9
        elif plan.certificate == "confidence":
            assert min(confident, mixed) <= certified + 1e-9
        else:
            assert certified > tau
        if plan.certificate != "none":
            assert certified <= tau + 1e-9
        assert plan.shares.sum() == pytest.approx(1.0)
    assert "confidence" in bases
    if len(plan.shares) == 2:
        assert min(confident, mixed) == pytest.approx(tau, abs=1e-9)


def deterministic_kernels(spec: CmdpSpec) -> list[np.ndarray]:
    """Every kernel [1, S, A, S] whose rows are certain: the extreme points of all kernels on a small support."""
    choices = [np.flatnonzero(row) for row in spec.support.reshape(-1, spec.num_states)]
    kernels = []
    for targets in product(*choices):
        kernel = np.zeros((len(choices), spec.num_states))
        kernel[np.arange(len(choices)), list(targets)] = 1.0
        kernels.append(kernel.reshape(spec.dirichlet_prior.shape))
    return kernels


def true_cost(spec: CmdpSpec, plan: Plan, kernel: np.ndarray, n: int = 1) -> float:
    values, total = np.empty((1 + spec.num_constraints, spec.num_states)), 0.0
    for share, policy in zip(plan.shares, plan.mixture, strict=True):
        evaluate_policy(kernel, spec.next_states, spec.signals, policy, values)
        total += share * float(spec.initial_distribution @ values[n])
    return total


def test_a_certain_plan_keeps_its_budget_on_every_kernel() -> None:
    """Before anything is seen: the mixture explores, and costs no more than the budget whatever the world does."""
    spec = spec_of(4, [[0.0, 1.0], [0.5, 0.0]], Constraint("cost", [[0.0, 1.0], [0.0, 0.6]], 1.5, 0.5))
    plan = first_plan(spec, CERTIFIED)
    assert plan.certificate == "certain"
    costs = [true_cost(spec, plan, kernel) for kernel in deterministic_kernels(spec)]
    assert max(costs) <= 1.5 + 1e-9
    assert max(costs) > 1.0  # it uses what it may
    assert len(plan.shares) == 2


@pytest.mark.parametrize("name", NAMES)
def test_early_plans_keep_their_budget_on_the_true_kernel(name: str) -> None:
    spec, p = named_case(name)
    for seed in range(5):
        run = SimulatedRun(SafePsrl(spec, CERTIFIED, seed=seed), p, environment_seed=seed)
        run.advance(60)
        assert run.ledger.strong_violation[0] <= 0.5


def test_a_budget_that_no_policy_is_known_to_keep() -> None:
    """Every action costs 0.4 a step at least: a budget of 1 in 5 steps has no certificate, and the least bound is played."""
    spec = spec_of(5, [[0.1, 0.9]] * 3, Constraint("cost", [[0.4, 1.0]] * 3, 1.0, 0.5))
    plan = first_plan(spec, CERTIFIED)
    assert plan.certificate == "none"
    assert plan.certified_costs == pytest.approx([2.0])
    assert (plan.policy == 0).all()


def test_a_budget_that_every_policy_keeps() -> None:
    """The plan for reward alone is within the budget for certain, and is played as it is."""
    spec = spec_of(3, [[0.1, 0.9]], Constraint("cost", [[0.1, 0.9]], 3.0, 1.0))
    plan = first_plan(spec, CERTIFIED)
    assert plan.shares.tolist() == [1.0]
    assert (plan.policy == 1).all()
    assert plan.certified_costs == pytest.approx([2.7])


# --- mixtures


@pytest.mark.parametrize("name", [*NAMES, "two-constraints"])
def test_mixtures_are_policies_with_shares(name: str) -> None:
    spec, p = named_case(name)
    learner = SafePsrl(spec, CERTIFIED, seed=1)
    run = SimulatedRun(learner, p, environment_seed=2)
    for _ in range(15):
        _, plan = learner.start_episode(run.state)
        run.advance(1)
        assert 1 <= len(plan.shares) <= 1 + spec.num_constraints
        assert plan.shares.min() > 0
        assert plan.shares.sum() == pytest.approx(1.0)
        assert any((plan.policy == part).all() for part in plan.mixture)
        assert all(spec.available_actions[np.arange(spec.num_states), part].all() for part in plan.mixture)
        assert plan.dual_variables.tolist() == plan.next_dual_variables.tolist() == [0.0] * spec.num_constraints


def test_policies_are_drawn_with_their_shares() -> None:
    """Over 3,000 episodes, to four standard deviations."""
    spec, p = preset("streaming-buffer"), KERNELS["streaming-buffer"]()
    run = SimulatedRun(SafePsrl(spec, CERTIFIED, seed=1), p, environment_seed=1)
    surplus, variance = 0.0, 0.0
    for _ in range(3_000):
        run.advance(1)
        share = run.draft.shares[0]
        if 0 < share < 1 and (run.draft.mixture[0] != run.draft.mixture[1]).any():
            surplus += (run.draft.policy == run.draft.mixture[0]).all() - share
            variance += share * (1 - share)
    assert variance > 100
    assert abs(surplus) <= 4 * math.sqrt(variance)


def test_the_same_state_gives_the_same_plan() -> None:
    """Plans are a function of (seed, episode) and the counts; another seed plays otherwise."""
    spec, p = preset("streaming-buffer"), KERNELS["streaming-buffer"]()
    learner = SafePsrl(spec, CERTIFIED, seed=1)
    run = SimulatedRun(learner, p, environment_seed=1)
    run.advance(300)
    first, again = (learner.start_episode(run.state)[1] for _ in range(2))
    assert first.policy.tobytes() == again.policy.tobytes()
    assert (first.mixture.tobytes(), first.shares.tobytes()) == (again.mixture.tobytes(), again.shares.tobytes())
    other = SafePsrl(spec, CERTIFIED, seed=2).start_episode(run.state)[1]
    assert other.mixture.tobytes() != first.mixture.tobytes() or other.shares.tobytes() != first.shares.tobytes()


def test_several_budgets_have_a_certificate_each() -> None:
    learner = SafePsrl(TWO_CONSTRAINTS, CERTIFIED, seed=1)
    run = SimulatedRun(learner, p := KERNELS["streaming-buffer"](), environment_seed=2)
    for _ in range(8):
        plan = learner.plan(run.state)
        assert plan.certified_costs is not None
        assert plan.certificate in {"certain", "confidence"}
        assert (plan.certified_costs <= TWO_CONSTRAINTS.cost_budgets + 1e-6).all()
        costs = [true_cost(TWO_CONSTRAINTS, plan, p[None], n) for n in (1, 2)]
        assert (np.array(costs) <= plan.certified_costs + 1e-6).all()
        run.advance(5)


def test_several_budgets_that_cannot_be_kept_are_exceeded_by_as_little_as_possible() -> None:
    """Four steps cost 1 each, to one or the other: 1.5 and 1.5 become 2 and 2, by a mixture."""
    constraints = [Constraint("a", [[1.0, 0.0]], 1.5, 0.0), Constraint("b", [[0.0, 1.0]], 1.5, 0.0)]
    plan = first_plan(spec_of(4, [[1.0, 0.0]], *constraints), CERTIFIED)
    assert plan.certificate == "none"
    assert plan.predicted_costs == pytest.approx([2.0, 2.0], abs=1e-6)
    assert plan.certified_costs == pytest.approx([2.0, 2.0], abs=1e-6)


@pytest.mark.parametrize("name", ["streaming-buffer", "two-constraints"])
def test_a_plan_that_is_stopped_is_not_used(name: str) -> None:
    spec, _ = named_case(name)
    learner = SafePsrl(spec, CERTIFIED, seed=1)
    with pytest.raises(PlanStoppedError, match="episode 1 was not planned"):
        learner.plan(learner.initial_state(), np.ones(1, np.bool_))


# --- costs that are learned


def test_unknown_costs_are_explored_within_the_budget() -> None:
    """One state; action 1 is worth playing and its cost is unknown: it counts as 1, so at most the budget's share is played."""
    spec = spec_of(10, [[0.0, 1.0]], Constraint("cost", [[0.0, math.nan]], 2.0, 0.0))
    learner = SafePsrl(spec, CERTIFIED, seed=1)
    state = learner.initial_state()
    plan = learner.plan(state)
    played = sum(share * (policy == 1).sum() for share, policy in zip(plan.shares, plan.mixture, strict=True))
    assert played == pytest.approx(2.0)
    assert plan.certified_costs == pytest.approx([2.0])
    free = replace(state, episode=1, visits=np.array([[[0.0, 1_000.0]]]))
    plan = learner.plan(free)
    assert (plan.policy == 1).all()  # a thousand observations of no cost


def test_among_policies_of_unknown_cost_reward_decides() -> None:
    """Nothing is known of the cost, so that all policies have the bound 4, above the budget of 1."""
    spec = spec_of(4, [[0.2, 0.7, 0.3]] * 3, Constraint("cost", [[math.nan] * 3] * 3, 1.0, 0.5))
    for seed in range(5):
        plan = first_plan(spec, CERTIFIED, seed)
        assert plan.certificate == "none"
        assert plan.certified_costs == pytest.approx([4.0])
        assert (plan.policy == 1).all()


def test_a_rare_cost_does_not_freeze_the_agent() -> None:
    """A cost of 0.01 in the mean, budget 0.5 in 10 steps: after 300 episodes the action is played nearly always."""
    spec = spec_of(10, [[0.0, 1.0]], Constraint("cost", [[0.0, math.nan]], 0.5, 0.0))
    learner = SafePsrl(spec, CERTIFIED, seed=1)
    run = SimulatedRun(learner, [[[1.0], [1.0]]], true_signals=np.array([[[[0.0, 1.0]]], [[[0.0, 0.01]]]]), noisy=True)
    run.advance(300)
    before = run.ledger.objective_regret[0]
    run.advance(100)
    assert run.ledger.objective_regret[0] - before < 100 * 0.5  # of a reward of 10 an episode
    assert run.ledger.violating_episodes[0] == 0


def test_the_papers_methods_explore_the_unknown_as_if_it_were_free() -> None:
    """Footnote 1: empirical means, and the guess 0 before. `certified` is the method for unknown costs."""
    spec = spec_of(10, [[0.0, 1.0]], Constraint("cost", [[0.0, math.nan]], 2.0, 0.0))
    plan = first_plan(spec, SafePsrlOptions("published"))
    assert (plan.policy == 1).all()
    assert plan.certified_costs is None
    assert plan.certificate == ""


def test_entries_that_are_known_are_not_learned() -> None:
    spec = spec_of(2, [[0.5, 0.5]], Constraint("cost", [[0.25, math.nan]], 1.0, 0.0))
    assert spec.learned.tolist() == [[[[False, False]]], [[[False, True]]]]
    learner = SafePsrl(spec, CERTIFIED)
    state = learner.initial_state()
    for action, cost in ((0, 1.0), (1, 1.0)):
        state = learner.observe(state, Transition(0, 0, action, 0, 0.5, (cost,)))
    plan = learner.start_episode(state)[1]
    assert (plan.policy == 0).all() or plan.shares.min() < 1
    assert plan.predicted_costs[0] <= 1.0


# --- whole runs


def ends(environment: str, algorithm: str, episodes: int, seeds: range) -> list[dict[str, float]]:
    return [run_job(Job(environment, algorithm, seed, episodes), lambda _: None, lambda: False).rows[-1] for seed in seeds]


@pytest.mark.slow
def test_the_streaming_buffer() -> None:
    """100,000 episodes, where the published setting has an objective regret of 26,600."""
    for end in ends("streaming-buffer", "certified", 100_000, range(101, 103)):
        assert end["objective_regret"] < 2_000
        assert end["constraint_regret_max"] <= 10
        assert end["strong_violation"] <= 30


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["inventory", "factored-toy", *(f"random:seed={seed}" for seed in (101, 105, 110))])
def test_far_less_regret_than_the_published_setting(environment: str) -> None:
    """A twenty-fifth at most after 100,000 episodes, the constraint regret never above one horizon, strong violation 60."""
    [end] = ends(environment, "certified", 100_000, range(1, 2))
    [published] = ends(environment, "safe-psrl", 100_000, range(1, 2))
    assert end["objective_regret"] <= published["objective_regret"] / 25
    assert end["constraint_regret_max"] <= scenario_named(environment).spec.horizon
    assert end["strong_violation"] <= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy"])
def test_the_first_episodes_keep_their_budget(name: str) -> None:
    """Of 200 episodes of 20 seeds, at most 0.5 % are above the budget, none by more than 0.5."""
    spec, p, above = preset(name), KERNELS[name](), 0
    for seed in range(1, 21):
        run = SimulatedRun(SafePsrl(spec, CERTIFIED, seed), p, environment_seed=seed)
        for _ in range(200):
            before = run.ledger.strong_violation[0]
            run.advance(1)
            assert run.ledger.strong_violation[0] - before <= 0.5
        above += int(run.ledger.violating_episodes[0])
    assert above <= 20
