"""Problems that list their next states: the same learning as with a mask over all states, in tables of the support's size.

Draws are equal to the bit. Plans add the same numbers in another order, so their values are equal to the bit where no sum
rounds, and to rounding elsewhere.
"""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.safe_psrl.cases import first_plan, listed_case, over_all_states, random_case, spec_of

from safe_psrl import (
    CmdpSpec,
    Constraint,
    SafePsrl,
    SafePsrlOptions,
    SimulatedRun,
    SpecError,
    Transition,
    TransitionError,
    exact_optimum,
)
from safe_psrl.methods.episode import assumption_is_certain
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import evaluate_policy, evaluate_randomised, occupancy, state_occupancy
from safe_psrl.planning.linear_program import optimal_occupancy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.posterior.uncertainty import belief_of, certain_bound, confident_bound, course_of
from safe_psrl.problem.documents import parse_document, spec_from_document, spec_to_document, write_document

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
SEEDS = st.integers(0, 2**32 - 1)
FLAGS = st.booleans()


def sixteenths(rng: np.random.Generator, support: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rows of probabilities that are multiples of 1/16, on the support: their sums and products do not round."""
    p = np.zeros(support.shape)
    for place in np.ndindex(support.shape[:-1]):
        possible = np.flatnonzero(support[place])
        p[place] = np.bincount(rng.choice(possible, 16), minlength=support.shape[-1]) / 16
    return p


def without_rounding(seed: int, sizes: tuple[int, int, int], per_step: bool) -> Any:
    """A masked problem whose kernel and signals are multiples of 1/16."""
    case = random_case(seed, sizes, masked=True, per_step=per_step)
    rng = np.random.default_rng(seed)
    spec = case.spec.with_signals(rng.integers(0, 17, case.spec.signals.shape) / 16)
    return case._replace(spec=spec, p=sixteenths(rng, spec.support))


def with_signals_of(case: Any, spec: CmdpSpec) -> Any:
    return case._replace(spec=case.spec.with_signals(spec.signals))


# --- the same learning


@given(SEEDS, SIZES, FLAGS)
def test_draws_are_equal_to_the_bit(seed: int, sizes: Any, per_step: bool) -> None:
    dense = random_case(seed, sizes, masked=True, per_step=per_step)
    short = listed_case(dense)
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.5, short.spec.dirichlet_prior.shape) * short.spec.support
    drawn, p = np.empty(counts.shape), np.empty(dense.spec.dirichlet_prior.shape)
    draw_kernel(stream_of(seed, 1, POSTERIOR), short.spec.dirichlet_prior, counts, drawn)
    draw_kernel(stream_of(seed, 1, POSTERIOR), dense.spec.dirichlet_prior, over_all_states(short.spec, counts), p)
    assert np.array_equal(over_all_states(short.spec, drawn), p)


@given(SEEDS, SIZES, FLAGS)
def test_plans_are_equal_to_the_bit_where_nothing_rounds(seed: int, sizes: Any, per_step: bool) -> None:
    """Policy, values, occupancy and costs to go."""
    dense = without_rounding(seed, sizes, per_step)
    spec, weights = dense.spec, np.array([1.0, -0.25])
    rng = np.random.default_rng(seed)
    shares = np.zeros((spec.horizon, spec.num_states, spec.num_actions))
    for place in np.ndindex(shares.shape[:2]):
        choices = np.flatnonzero(spec.available_actions[place[1]])
        shares[place] = np.bincount(rng.choice(choices, 4), minlength=spec.num_actions) / 4
    found = []
    for case in (dense, with_signals_of(listed_case(dense), spec)):
        places = case.spec.next_states
        policy, values = np.empty((spec.horizon, spec.num_states), np.int32), np.empty((2, spec.num_states))
        plan_policy(case.p, places, spec.signals, weights, spec.available_actions, policy, values, np.zeros(1, np.bool_))
        again, mixed = np.empty_like(values), np.empty_like(values)
        evaluate_policy(case.p, places, spec.signals, policy, again)
        evaluate_randomised(case.p, places, spec.signals, shares, mixed)
        start = np.eye(spec.num_states)[0]
        visits, reached = occupancy(case.p, places, shares, start), occupancy(case.p, places, np.eye(sizes[1])[policy], start)
        going = state_occupancy(case.p, places, policy, start)
        found.append((policy, values, again, mixed, visits, going, reached))
    for mine, theirs in zip(*found, strict=True):
        assert np.array_equal(mine, theirs)


@given(SEEDS, SIZES, FLAGS)
def test_the_posterior_is_as_uncertain(seed: int, sizes: Any, per_step: bool) -> None:
    dense = random_case(seed, sizes, masked=True, per_step=per_step)
    short = listed_case(dense)
    policy = np.tile(dense.spec.available_actions.argmax(axis=-1).astype(np.int32), (dense.spec.horizon, 1))
    counts = np.random.default_rng(seed).poisson(2.0, short.spec.dirichlet_prior.shape) * short.spec.support
    found = []
    for spec, seen in ((dense.spec, over_all_states(short.spec, counts)), (short.spec, counts)):
        belief, start = belief_of(spec.dirichlet_prior, spec.next_states, seen), spec.initial_distribution
        course = course_of(belief, spec.signals[1], policy, start)
        certain = certain_bound(belief, spec.signals[1], policy, start)
        found.append([confident_bound(belief, course, start, 2.0), certain, *course.costs_to_go.ravel()])
    assert found[1] == pytest.approx(found[0], rel=1e-9, abs=1e-12)


@given(SEEDS, SIZES, FLAGS)
def test_the_assumption_is_as_certain(seed: int, sizes: Any, per_step: bool) -> None:
    """Both ways it is found by the same sums, so the answers are equal."""
    dense = random_case(seed, sizes, masked=True, per_step=per_step, binary_costs=True)
    assert assumption_is_certain(listed_case(dense).spec) == assumption_is_certain(dense.spec)


@pytest.mark.parametrize("method", ["published", "certified"])
@pytest.mark.parametrize("kind", [{}, {"per_step": True, "step_signals": True}, {"learned": True}, {"num_constraints": 2}])
def test_a_run_is_the_same(method: str, kind: dict[str, Any]) -> None:
    """The same worlds and plans: equal counts in the end; dual variables and regrets equal to rounding."""
    dense = random_case(3, (6, 3, 5), masked=True, **kind)
    episodes = 5 if "num_constraints" in kind and method == "certified" else 100
    runs = []
    for case in (dense, listed_case(dense)):
        learner = SafePsrl(case.spec, SafePsrlOptions(method), seed=4)
        run = SimulatedRun(learner, case.p, environment_seed=5, noisy="learned" in kind)
        run.advance(episodes)
        runs.append(run)
    full, short = runs
    assert short.state.transition_counts.sum() == episodes * dense.spec.horizon
    assert np.array_equal(over_all_states(listed_case(dense).spec, short.state.transition_counts), full.state.transition_counts)
    assert np.array_equal(short.state.visits, full.state.visits)
    assert short.dual_variables == pytest.approx(full.dual_variables, rel=1e-9)
    assert short.pessimism == pytest.approx(full.pessimism, rel=1e-9)
    tied = method == "certified" and "learned" in kind  # policies of unknown cost have equal bounds, up to rounding
    for mine, theirs in zip(short.ledger, full.ledger, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-2 if tied else 1e-9)


@pytest.mark.parametrize("per_step", [False, True])
def test_the_optimum_is_the_same(per_step: bool) -> None:
    """By the search on the multiplier and by the linear program."""
    dense = random_case(11, (5, 3, 4), masked=True, per_step=per_step)
    short = listed_case(dense)
    budgets = dense.spec.cost_budgets * 0.8
    best, found = exact_optimum(dense.spec, dense.p, budgets), exact_optimum(short.spec, short.p, budgets)
    assert found.reward == pytest.approx(best.reward, rel=1e-9)
    assert found.costs == pytest.approx(best.costs, rel=1e-9)
    visits = optimal_occupancy(short.spec, short.p, budgets)
    assert (visits * np.broadcast_to(short.spec.signals[0], visits.shape)).sum() == pytest.approx(best.reward, rel=1e-7)


# --- looking next states up


@given(SEEDS, SIZES, FLAGS)
def test_every_possible_next_state_is_found_and_no_other(seed: int, sizes: Any, per_step: bool) -> None:
    dense = random_case(seed, sizes, masked=True, per_step=per_step).spec
    short = listed_case(random_case(seed, sizes, masked=True, per_step=per_step)).spec
    for h, s, a, t in np.ndindex(dense.dirichlet_prior.shape):
        place = short.place_of(h, s, a, t)
        assert (place >= 0) == (dense.place_of(h, s, a, t) == t) == bool(dense.support[h, s, a, t])
        if place >= 0:
            assert short.next_states[h % len(short.next_states), s, a, place] == t
            assert short.dirichlet_prior[h, s, a, place] == dense.dirichlet_prior[h, s, a, t]


def ring(num_states: int = 4, **changes: Any) -> CmdpSpec:
    """Action 0 stays; action 1 leads on, or back."""
    s = np.arange(num_states)
    ends = np.sort([(s + 1) % num_states, (s - 1) % num_states], axis=0).T
    fields: dict[str, Any] = {
        "num_states": num_states,
        "num_actions": 2,
        "horizon": 3,
        "reward": np.zeros((num_states, 2)),
        "constraints": [Constraint("moves", np.tile([0.0, 1.0], (num_states, 1)), 1.0, 0.0)],
        "next_states": np.stack([np.stack([s, np.full(num_states, -1)], axis=-1), ends], axis=1),
    }
    return CmdpSpec(**{**fields, **changes})


def test_counts_are_kept_at_the_places_of_the_list() -> None:
    learner = SafePsrl(ring())
    state, _ = learner.start_episode(learner.initial_state())
    for step, (s, a, t) in enumerate([(0, 1, 3), (3, 1, 2), (2, 0, 2)]):
        state = learner.observe(state, Transition(step, s, a, t))
    counts = learner.settle(state).transition_counts
    assert counts.shape == (1, 4, 2, 2)
    assert np.argwhere(counts).tolist() == [[0, 0, 1, 1], [0, 2, 0, 0], [0, 3, 1, 1]]


@pytest.mark.parametrize(("s", "a", "t"), [(0, 1, 0), (0, 1, 2), (1, 0, 0), (2, 0, 3)])
def test_a_next_state_that_is_not_listed_is_refused(s: int, a: int, t: int) -> None:
    learner = SafePsrl(ring())
    state = learner.initial_state()
    with pytest.raises(TransitionError, match=f"next_state = {t}: is outside the support of state {s}, action {a}"):
        learner.observe(state, Transition(0, s, a, t))
    assert state.pending == ()


# --- edges


def test_one_state_that_leads_to_itself() -> None:
    spec = spec_of(1, [[1.0]], Constraint("c", [[0.0]], 1.0, 0.0), next_states=[[[0]]])
    learner = SafePsrl(spec)
    state, plan = learner.start_episode(learner.initial_state())
    assert (plan.policy.tolist(), plan.predicted_reward) == ([[0]], 1.0)
    state, _ = learner.start_episode(learner.observe(state, Transition(0, 0, 0, 0)))
    assert state.transition_counts.tolist() == [[[[1]]]]


def test_one_next_state_leaves_nothing_to_learn() -> None:
    """W = 1: every draw is the kernel itself, so plans are exact from the first episode on."""
    spec = ring(next_states=np.stack([np.arange(4), (np.arange(4) + 1) % 4], axis=-1)[..., None], reward=np.eye(4)[:, [1, 1]])
    plan = first_plan(spec, SafePsrlOptions(pessimism_coefficient=0.0))
    assert plan.predicted_reward == 2.0  # one move brings it to state 1, where it stays
    assert plan.policy[0, 0] == 1
    assert plan.predicted_costs.tolist() == [1.0]


def test_an_unavailable_action_may_lead_nowhere() -> None:
    """It is never played and never drawn; the same pair, available, is refused."""
    places = np.array(spec_to_document(ring())["next_states"])
    places[2, 1] = -1
    available = np.ones((4, 2), np.bool_)
    available[2, 1] = False
    spec = ring(next_states=places, available_actions=available)
    assert not spec.support[0, 2, 1].any()
    learner = SafePsrl(spec)
    for seed in range(3):
        _, plan = SafePsrl(spec, seed=seed).start_episode(learner.initial_state())
        assert not plan.policy[:, 2].any()
    with pytest.raises(SpecError, match=r"next_states\[2\]\[1\] .*: has no possible next state"):
        ring(next_states=places)


def test_steps_may_share_a_list_or_have_their_own() -> None:
    """Not stationary: a kernel a step either way; the list is kept once where it is given once."""
    once = ring(stationary=False)
    assert (once.next_states.shape, once.dirichlet_prior.shape) == ((1, 4, 2, 2), (3, 4, 2, 2))
    own = np.tile(spec_to_document(ring())["next_states"], (3, 1, 1, 1))
    own[2, 0, 0] = [1, 2]
    spec = ring(stationary=False, next_states=own)
    assert spec.next_states.shape == (3, 4, 2, 2)
    assert (spec.place_of(2, 0, 0, 2), spec.place_of(1, 0, 0, 2), once.place_of(2, 0, 0, 2)) == (1, -1, -1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_states": [[[0]]]}, r"next_states.*\[num_states, num_actions, width\]"),
        ({"next_states": [0, 1]}, r"next_states.*\[num_states, num_actions, width\]"),
        ({"next_states": 3}, r"next_states"),
        ({"next_states": "all"}, r"next_states"),
        ({"next_states": [[[0], [1, 2]]] * 4}, r"next_states.*rows of equal length"),
        ({"next_states": [[[0, 4], [1, 2]]] * 4}, r"next_states\[0\]\[0\]\[1\] = 4: must be a whole number from 0 to 3, or -1"),
        ({"next_states": [[[0, -2], [1, 2]]] * 4}, r"next_states\[0\]\[0\]\[1\] = -2: must be a whole number"),
        ({"next_states": [[[0, 1.5], [1, 2]]] * 4}, r"next_states\[0\]\[0\]\[1\] = 1.5: must be a whole number"),
        ({"next_states": [[[0, 1], [2, 1]]] * 4}, r"next_states\[0\]\[1\]\[1\] = 1: must be greater than the one before it"),
        ({"next_states": [[[0, 1], [2, 2]]] * 4}, r"next_states\[0\]\[1\]\[1\] = 2: must be greater than the one before it"),
        ({"next_states": [[[-1, 1], [1, 2]]] * 4}, r"next_states\[0\]\[0\]\[1\] = 1: .* -1 comes last"),
        ({"next_states": [[[], []]] * 4}, r"next_states\[0\]\[0\] .*: has no possible next state"),
        ({"support": np.ones((4, 2, 4))}, r"support.*must not be given together with next_states"),
        ({"dirichlet_prior": np.ones((4, 2, 4))}, r"dirichlet_prior.*\[num_states, num_actions, width\]"),
        ({"dirichlet_prior": np.zeros((4, 2, 2))}, r"dirichlet_prior\[0\]\[0\]\[0\] = 0: must be greater than 0"),
        ({"horizon": 2**30}, r"horizon.*entries"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ring(**changes)


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        (np.full((4, 2, 4), 0.25), r"transitions.*\[S, A, W\]"),
        (np.full((4, 2, 2), 0.5), r"transitions\[0\]\[0\]\[1\] = 0.5: must be 0 outside the support"),
    ],
)
def test_a_kernel_has_the_shape_of_the_list(transitions: NDArray[np.float64], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        exact_optimum(ring(), transitions)


# --- documents


@given(SEEDS, SIZES, FLAGS, st.sampled_from(["toml", "json"]))
def test_lists_survive_the_round_trip(seed: int, sizes: Any, per_step: bool, kind: str) -> None:
    spec = listed_case(random_case(seed, sizes, masked=True, per_step=per_step)).spec
    again = spec_from_document(parse_document(write_document(spec_to_document(spec), kind), kind))
    assert np.array_equal(again.next_states, spec.next_states)
    assert np.array_equal(again.dirichlet_prior, spec.dirichlet_prior)
    assert "support" not in spec_to_document(spec)


# --- size


def test_nothing_grows_with_the_square_of_the_states() -> None:
    """Specification, learner, first episode and observations of 20,000 states, in 1/50 of what a table over all would take."""
    tracemalloc.start()
    try:
        spec = ring(20_000, horizon=5)
        learner = SafePsrl(spec)
        state, plan = learner.start_episode(learner.initial_state())
        settled = learner.settle(learner.observe(state, Transition(0, 7, 1, 8)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.policy.shape == (5, 20_000)
    assert settled.transition_counts.shape == (1, 20_000, 2, 2)
    assert settled.transition_counts[0, 7, 1].tolist() == [0, 1]
    assert peak < 20_000**2 * 2 * 8 / 50
