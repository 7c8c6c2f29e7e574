"""The detector of drift and forgetting, against plain arithmetic; and that a simulated run and a user's loop agree on them."""

import numpy as np
import pytest
from tests.safe_psrl.cases import named_case, random_case, spec_of

from safe_psrl import Constraint, DriftOptions, SafePsrl, SafePsrlOptions, SimulatedRun, SpecError, Transition, act
from safe_psrl.learner import AgentState
from safe_psrl.posterior.drift import count_visit
from safe_psrl_testbed import TabularEnvironment

WATCHFUL = DriftOptions(detect=True, memory_visits=5, false_alarm_steps=1.1, on_detect="forget", half_life_visits=20)
CASES = ["streaming-buffer", "two-constraints", "per-step", "masked", "listed", "listed-per-step"]


def observed(learner: SafePsrl, state: AgentState, steps: list[tuple[int, int, int, int]]) -> AgentState:
    for step, now, action, after in steps:
        state = learner.observe(state, Transition(step, now, action, after, 0.5, (0.25,) * learner.spec.num_constraints))
    return learner.settle(state)


def random_steps(seed: int, sizes: tuple[int, int, int], number: int) -> list[tuple[int, int, int, int]]:
    num_states, num_actions, horizon = sizes
    drawn = np.random.default_rng(seed).integers((horizon, num_states, num_actions, num_states), size=(number, 4))
    return [(step, now, action, after) for step, now, action, after in drawn.tolist()]


@pytest.mark.parametrize("per_step", [False, True])
def test_statistics_are_those_of_the_formulas(per_step: bool) -> None:
    """Each row: the ratio of both predictions before the visit, R <- (R + 1) LR, the short memory, the half-life."""
    sizes = (3, 2, 4)
    spec, _ = random_case(3, sizes, per_step=per_step, learned=True)
    learner = SafePsrl(spec, drift=DriftOptions(detect=True, memory_visits=7, half_life_visits=11))
    steps = random_steps(1, sizes, 300)
    state = observed(learner, learner.initial_state(), steps)
    prior, keep = spec.dirichlet_prior, 0.5 ** (1 / 11)
    counts, recent, statistics = np.zeros(prior.shape), np.zeros(prior.shape), np.zeros(prior.shape[:3])
    visits, rewards = np.zeros((1, 3, 2)), np.zeros((1, 3, 2))
    for step, now, action, after in steps:
        row = (step if per_step else 0, now, action)
        alpha, beta = prior[row] + counts[row], prior[row] + recent[row]
        ratio = (beta[after] / beta.sum()) / (alpha[after] / alpha.sum())
        statistics[row] = (statistics[row] + 1) * ratio if ratio != 1 else statistics[row]
        recent[row] = (1 - 1 / 7) * recent[row] + np.eye(3)[after]
        counts[row] = keep * counts[row] + np.eye(3)[after]
        visits[0, now, action] = keep * visits[0, now, action] + 1
        rewards[0, now, action] = keep * rewards[0, now, action] + 0.5
    for found, expected in zip(state.tables, (counts, rewards, visits, recent, statistics), strict=True):
        compared = found[0] if found.ndim > expected.ndim else found
        np.testing.assert_allclose(compared, expected, rtol=1e-9)
    reading = learner.read_drift(state)
    assert reading is not None
    assert reading.statistic == pytest.approx(statistics.sum())


def test_the_ratio_has_mean_one_under_the_long_memory() -> None:
    """What makes the sum of the statistics, less the transitions, a martingale."""
    prior, counts, recent = np.array([0.1, 0.4, 2.0]), np.array([30.0, 2.0, 7.0]), np.array([0.0, 4.5, 1.0])
    predicted = (prior + counts) / (prior + counts).sum()
    ratios = [count_visit(prior, counts.copy(), recent.copy(), place, 0.0, 1.0, 0.9) for place in range(3)]  # (0 + 1) LR
    assert predicted @ ratios == pytest.approx(1.0)


def test_a_row_with_one_possible_next_state_says_nothing() -> None:
    """Its ratio is always 1: counting it would raise an alarm after so many visits for certain."""
    spec = spec_of(1, [[0.0]], Constraint("cost", [[0.0]], 1.0, 0.0))
    learner = SafePsrl(spec, drift=DriftOptions(detect=True))
    state = observed(learner, learner.initial_state(), [(0, 0, 0, 0)] * 1_000)
    assert state.drift_statistics.tolist() == [[[0.0]]]
    assert state.transition_counts.tolist() == [[[[1_000.0]]]]


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Drawn from the long memory's own predictions, next states raise an alarm in at most 10 % of runs of that length."""
    drift, runs, rng = DriftOptions(detect=True, memory_visits=10, false_alarm_steps=200), 500, np.random.default_rng(3)
    false_alarms = crossings = 0
    for _ in range(runs):
        prior, counts, recent, statistic, greatest = np.full(4, 0.5), np.full(4, 20.0), np.zeros(4), 0.0, 0.0
        for _ in range(200):
            place = int(rng.choice(4, p=(prior + counts) / (prior + counts).sum()))
            statistic = count_visit(prior, counts, recent, place, statistic, drift.keep, drift.keep_recent)
            greatest = max(greatest, statistic)
        false_alarms += greatest >= drift.alarm
        crossings += greatest >= drift.false_alarm_steps
    assert false_alarms <= 0.1 * runs
    assert crossings > 0.1 * runs, "a limit of as many steps would not do"


def test_a_change_is_detected_reported_and_forgotten() -> None:
    """State 0 led to state 1 a thousand times, then to state 2: the row is named, and its memory is the recent one."""
    spec = spec_of(1, np.zeros((3, 1)), Constraint("cost", np.zeros((3, 1)), 1.0, 0.0, learned=True))
    learner = SafePsrl(spec, drift=DriftOptions(detect=True, memory_visits=10, false_alarm_steps=1e3, on_detect="forget"))
    state = observed(learner, learner.initial_state(), [(0, 0, 0, 1)] * 1_000)
    state, plan = learner.start_episode(state)
    assert plan.drift is not None
    assert not plan.drift.detected
    state = observed(learner, state, [(0, 0, 0, 2)] * 20)
    recent = state.recent_counts
    state, plan = learner.start_episode(state)
    assert plan.drift is not None
    assert plan.drift.statistic > 1e4
    assert [(row.step, row.state, row.action) for row in plan.drift.rows] == [(0, 0, 0)]
    assert state.transition_counts.tolist() == recent.tolist()
    assert state.transition_counts[0, 0, 0, 2] > 5 * state.transition_counts[0, 0, 0, 1]
    assert not state.drift_statistics.any(), "the statistics begin anew"
    assert state.visits[0, 0, 0] == pytest.approx(recent.sum()), "learned signals keep as much weight"
    assert state.signal_sums[1, 0, 0, 0] / state.visits[0, 0, 0] == pytest.approx(0.25), "and their means"


def test_the_statistic_stays_finite_in_an_endless_episode() -> None:
    """A thousand visits that contradict what was learned, before the next episode reads them."""
    spec = spec_of(1_000, np.zeros((3, 1)), Constraint("cost", np.zeros((3, 1)), 1.0, 0.0))
    learner = SafePsrl(spec, drift=DriftOptions(detect=True))
    calm = [(0, 0, 0, 1)] * 100_000
    state = observed(learner, learner.initial_state(), calm)
    state = observed(learner, state, [(step, 0, 0, 2) for step in range(1_000)])
    reading = learner.read_drift(state)
    assert reading is not None
    assert reading.detected
    assert reading.statistic == pytest.approx(1e15)


@pytest.mark.parametrize("on_detect", ["alert", "pause"])
def test_without_forget_what_was_learned_stays(on_detect: str) -> None:
    spec = spec_of(1, np.zeros((3, 1)), Constraint("cost", np.zeros((3, 1)), 1.0, 0.0))
    learner = SafePsrl(spec, drift=DriftOptions(detect=True, false_alarm_steps=1.1, on_detect=on_detect))
    state = observed(learner, learner.initial_state(), [(0, 0, 0, 1)] * 200 + [(0, 0, 0, 2)] * 20)
    after, plan = learner.start_episode(state)
    assert plan.drift is not None
    assert plan.drift.detected
    assert after.transition_counts.tolist() == state.transition_counts.tolist()
    assert not after.drift_statistics.any()


@pytest.mark.parametrize("method", ["published", "certified"])
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_forgets_is_the_learner_in_the_environment_to_the_bit(name: str, method: str) -> None:
    """Detections, forgetting and half-lives are the same in compiled runs and in a user's own loop."""
    spec, p = named_case(name)
    learner, episodes = SafePsrl(spec, SafePsrlOptions(method), seed=2, drift=WATCHFUL), 25
    run = SimulatedRun(learner, p, environment_seed=9)
    run.advance(episodes)
    state, environment, detections = learner.initial_state(), TabularEnvironment(spec, p), 0
    for k in range(episodes):
        state, plan = learner.start_episode(state)
        detections += plan.drift is not None and plan.drift.detected
        now, done, step = environment.reset(9 if k == 0 else None), False, 0
        while not done:
            action = act(plan, step, now)
            after, reward, costs, done = environment.step(action)
            state = learner.observe(state, Transition(step, now, action, after, reward, costs))
            now, step = after, step + 1
    for found, expected in zip(run.state.tables, learner.settle(state).tables, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert run.ledger.detections[0] == detections > 0


def test_a_world_that_changes() -> None:
    """The run goes on in the other kernel, and its regret is counted against that one's optimum."""
    spec, p = named_case("streaming-buffer")
    run = SimulatedRun(SafePsrl(spec), p)
    run.advance(5)
    before = run.world.best_reward
    run.move_to(np.roll(p, 1, axis=2))
    run.advance(5)
    assert run.episode == 10
    assert run.world.best_reward != before
    assert run.state.transition_counts.sum() == 10 * spec.horizon


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("detect", 1),
        ("memory_visits", 1.0),
        ("memory_visits", float("nan")),
        ("false_alarm_steps", 0),
        ("false_alarm_steps", float("inf")),
        ("on_detect", "ignore"),
        ("on_detect", 3),
        ("half_life_visits", 0),
        ("half_life_visits", "long"),
    ],
)
def test_impossible_options_name_their_field(field: str, value: object) -> None:
    with pytest.raises(SpecError) as raised:
        DriftOptions(**{field: value})
    assert raised.value.field == field


def test_without_detection_no_memory_is_kept() -> None:
    state = SafePsrl(named_case("streaming-buffer").spec).initial_state()
    assert state.recent_counts.size == state.drift_statistics.size == 0
