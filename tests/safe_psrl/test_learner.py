"""The learner as a state machine: immutable values, repeatable plans."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from safe_psrl import Constraint, SafePsrl, SafePsrlOptions, SpecError, Transition, act, preset
from safe_psrl.learner import estimated_signals
from tests.safe_psrl.cases import first_plan, random_case, spec_of


def assert_same_plan(one: object, other: object) -> None:
    for field in fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("method", ["published", "certified"])
def test_arrays_of_states_and_plans_are_read_only(method: str) -> None:
    """No one can change what was decided or learned: arrays refuse writing, fields refuse assignment."""
    learner = SafePsrl(random_case(1, (3, 2, 3), learned=True).spec, SafePsrlOptions(method))
    initial = learner.initial_state()
    state, plan = learner.start_episode(initial)
    settled = learner.settle(learner.observe(state, Transition(0, 0, 0, 0, 0.5, (0.5,))))
    assert (initial.episode, state.episode) == (0, 1)
    assert not initial.transition_counts.any()
    assert (plan.certified_costs is not None) == (len(plan.shares) > 0) == (method == "certified")
    for value in (initial, state, plan, settled):
        tables = [getattr(value, field.name) for field in fields(value)]
        for table in (table for table in tables if isinstance(table, np.ndarray)):
            with pytest.raises(ValueError, match="read-only"):
                table[...] = 0
        with pytest.raises(FrozenInstanceError):
            value.episode = 9


def test_the_same_state_gives_the_same_plan() -> None:
    """Randomness is a function of (seed, episode): asking twice, or another learner of that seed, changes nothing."""
    spec = preset("streaming-buffer")
    learner = SafePsrl(spec, seed=1)
    state, first = learner.start_episode(learner.initial_state())
    _, again = learner.start_episode(learner.initial_state())
    assert_same_plan(first, again)
    learner.start_episode(state)
    _, elsewhere = SafePsrl(spec, seed=1).start_episode(learner.initial_state())
    assert_same_plan(first, elsewhere)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_other_seeds_and_episodes_sample_other_kernels(seed: int) -> None:
    """Seeds differ, and so do episodes of one seed though nothing was learned between them."""
    spec = preset("streaming-buffer")
    learner = SafePsrl(spec, seed=seed)
    state, first = learner.start_episode(learner.initial_state())
    _, second = learner.start_episode(state)
    _, other = SafePsrl(spec, seed=1).start_episode(learner.initial_state())
    assert len({first.predicted_reward, second.predicted_reward, other.predicted_reward}) == 3
    assert (state.episode, second.episode) == (1, 2)


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0, "1", None])
def test_seeds_outside_their_range_are_refused(seed: object) -> None:
    """A seed is a whole number from 0 to 2^63 - 1."""
    with pytest.raises(SpecError, match=r"^seed = "):
        SafePsrl(preset("factored-toy"), seed=seed)


def test_observing_changes_no_earlier_state() -> None:
    """`observe` returns the next state; the one it was given stays, and can be continued differently."""
    learner = SafePsrl(preset("factored-toy"))
    state, _ = learner.start_episode(learner.initial_state())
    one = learner.observe(state, Transition(0, 0, 1, 1))
    other = learner.observe(state, Transition(0, 0, 1, 2))
    assert state.pending == ()
    assert learner.settle(one).transition_counts[0, 0, 1].tolist() == [0, 1, 0]
    assert learner.settle(other).transition_counts[0, 0, 1].tolist() == [0, 0, 1]
    assert not state.transition_counts.any()


def test_settling_counts_each_pending_transition_once() -> None:
    """`settle` empties `pending` into the counts; a settled state is returned as it is, and plans as the unsettled one."""
    learner = SafePsrl(preset("factored-toy"))
    state, _ = learner.start_episode(learner.initial_state())
    for step, next_state in enumerate((1, 1, 2)):
        state = learner.observe(state, Transition(step, 0, 1, next_state))
    settled = learner.settle(state)
    assert settled.pending == ()
    assert settled.transition_counts.sum() == 3
    assert settled.transition_counts[0, 0, 1].tolist() == [0, 2, 1]
    assert learner.settle(settled) is settled
    assert_same_plan(learner.start_episode(state)[1], learner.start_episode(settled)[1])
    assert learner.start_episode(state)[0].pending == ()


def test_per_step_kernels_count_per_step() -> None:
    """Section 3.2's p_h: with non-stationary kernels a transition teaches its own step only."""
    learner = SafePsrl(random_case(2, (2, 1, 3), per_step=True).spec)
    state = learner.initial_state()
    for step in (0, 2, 2):
        state = learner.observe(state, Transition(step, 1, 0, 0))
    assert learner.settle(state).transition_counts[:, 1, 0, 0].tolist() == [1, 0, 2]


def test_learned_signals_are_means_of_what_was_seen() -> None:
    """Footnote 1: the empirical mean stands in for a learned signal once its pair was visited; before, the guess."""
    spec = random_case(3, (2, 2, 3), learned=True).spec
    learner = SafePsrl(spec)
    state = learner.initial_state()
    for reward, cost in ((1.0, 0.0), (0.5, 1.0), (0.0, 0.5)):
        state = learner.observe(state, Transition(1, 0, 1, 1, reward, (cost,)))
    state = learner.settle(state)
    estimates = estimated_signals(spec, state.signal_sums, state.visits)
    expected = spec.signals.copy()
    expected[:, 0, 0, 1] = 0.5
    assert estimates == pytest.approx(expected, abs=1e-15)
    assert not SafePsrl(preset("factored-toy")).initial_state().visits.size, "known signals need no sums"


def test_plan_uses_the_learned_signals() -> None:
    """A reward that turned out to be 1 attracts the plan; the same observations of 0 do not."""
    moves = Constraint("moves", np.tile([0.0, 1.0], (3, 1)), 3.0, 0.6)
    spec = spec_of(6, np.full((3, 2), 0.5), moves, reward_learned=True)
    learner = SafePsrl(spec, SafePsrlOptions(pessimism_coefficient=0))
    rewards = {}
    for seen in (0.0, 1.0):
        state = learner.initial_state()
        for action in (0, 1):
            for now in range(3):
                state = learner.observe(state, Transition(0, now, action, now, seen if action else 0.2, (0.0,)))
        rewards[seen] = learner.start_episode(state)[1]
    assert (rewards[1.0].policy == 1).all()
    assert (rewards[0.0].policy == 0).all()


@pytest.mark.parametrize("step", [0, 5])
def test_act_reads_the_policy(step: int) -> None:
    """The action of pi_k at the first and the last step, in every state, as a plain whole number."""
    learner = SafePsrl(preset("factored-toy"), seed=3)
    _, plan = learner.start_episode(replace(learner.initial_state(), dual_variables=np.array([9.0])))
    for state in range(3):
        action = act(plan, step, state)
        assert type(action) is int
        assert action == plan.policy[step, state]


@pytest.mark.parametrize(
    ("step", "state", "field"),
    [
        *((step, 0, "step") for step in (-1, 6, True, 0.0)),
        *((0, state, "state") for state in (-1, 3, None)),
    ],
)
def test_act_refuses_what_is_not_in_the_plan(step: object, state: object, field: str) -> None:
    """Step H is past the end; -1 is not the last one, as Python's indexing would have it."""
    plan = first_plan(preset("factored-toy"))
    with pytest.raises(SpecError, match=f"^{field} = .*must be a whole number"):
        act(plan, step, state)


def test_a_learner_with_another_seed_shares_what_was_made_of_the_problem() -> None:
    """And plans as one that was made for that seed."""
    learner = SafePsrl(preset("streaming-buffer"), seed=1)
    other = learner.with_seed(2)
    assert (learner.seed, other.seed) == (1, 2)
    assert other.problem is learner.problem
    _, plan = other.start_episode(other.initial_state())
    assert_same_plan(plan, SafePsrl(preset("streaming-buffer"), seed=2).start_episode(other.initial_state())[1])
    with pytest.raises(SpecError, match="seed"):
        learner.with_seed(-1)
