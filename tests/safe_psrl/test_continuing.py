"""Tasks that never end: epochs, plans and their bounds, and runs that equal the state machine."""

from typing import Any

import numpy as np
import pytest

from safe_psrl import (
    CmdpSpec,
    Constraint,
    ContinuingPsrl,
    ContinuingRun,
    DriftOptions,
    InitialCounts,
    SafePsrl,
    SafePsrlOptions,
    SpecError,
    Transition,
    TransitionError,
    preset,
    warm_up_continuing,
)
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of, uniform
from safe_psrl.simulation import pick
from safe_psrl_testbed.kernels import KERNELS
from tests.safe_psrl.cases import Case, listed_case
from tests.safe_psrl.continuing_cases import continuing_case, trap
from tests.safe_psrl.test_warm_up import signatures

SMALL: dict[str, Any] = {
    "num_states": 2,
    "num_actions": 1,
    "horizon": "continuing",
    "reward": [[0], [1]],
    "constraints": [Constraint("cost", [[0], [1]], 0.5, 0.1)],
}


def buffer_run(method: str, seed: int = 1, **more: Any) -> ContinuingRun:
    learner = ContinuingPsrl(preset("continuing-buffer"), SafePsrlOptions(method), seed, **more)
    return ContinuingRun(learner, KERNELS["continuing-buffer"](), environment_seed=seed)


def played(run: ContinuingRun, steps: int) -> tuple[Any, list[Any]]:
    """The same as `run.advance(steps)` with the state machine: its last state, settled, and its plans."""
    learner, seed = run.learner, run.learner.base.seed
    state, place = learner.initial_state(), pick(run.world.cumulative_initial, uniform(stream_of(seed, 0, ENVIRONMENT)))
    plans = []
    for step in range(steps):
        if state.epoch_is_over:
            state, plan = learner.start_epoch(state, place)
            plans.append(plan)
        action = learner.act(plans[-1], step, place)
        stream = stream_of(seed, step + 1, ENVIRONMENT)
        entry = pick(run.world.cumulative_p[0, place, action], uniform(stream))
        after = int(run.world.next_states[0, place, action, entry]) if learner.spec.lists_next_states else entry
        signals = run.world.signals[:, 0, place, action].tolist()
        state = learner.observe(state, Transition(step, place, action, after, signals[0], tuple(signals[1:])))
        place = after
    return learner.base.settle(state.learned), plans


@pytest.mark.parametrize("method", ["certified", "published"])
def test_a_run_equals_the_state_machine(method: str) -> None:
    """To the bit: counts, dual variables, epochs and the policy in force; however the run is cut into pieces."""
    run = buffer_run(method, seed=3, max_epoch_steps=70)
    for piece in (1, 99, 300):
        run.advance(piece)
    state, plans = played(run, 400)
    assert run.epochs == len(plans) == state.episode
    assert np.array_equal(run.state.transition_counts, state.transition_counts)
    assert np.array_equal(run.dual_variables, state.dual_variables)
    assert np.array_equal(run.course.probabilities, plans[-1].probabilities)


def test_listed_next_states_and_learned_signals_are_played() -> None:
    """The same for a problem with lists, masks, learned signals, several constraints and drift."""
    case = listed_case(continuing_case(4, masked=True))
    known = case.spec
    spec = CmdpSpec(
        num_states=known.num_states,
        num_actions=known.num_actions,
        horizon="continuing",
        reward=known.signals[0, 0],
        reward_learned=True,
        constraints=[Constraint(name, known.signals[1, 0], 0.9, 0.5, learned=True) for name in ("one", "other")],
        available_actions=known.available_actions,
        next_states=np.where(known.support, known.next_states, -1)[0],
    )
    learner = ContinuingPsrl(spec, SafePsrlOptions("certified"), 5, drift=DriftOptions(detect=True, half_life_visits=50.0))
    run = ContinuingRun(learner, case.p, environment_seed=5)
    run.advance(150)
    state, plans = played(run, 150)
    assert np.array_equal(run.state.signal_sums, state.signal_sums)
    assert np.array_equal(run.state.drift_statistics, state.drift_statistics)
    assert run.epochs == len(plans)


def test_epochs_end_when_a_pair_doubles() -> None:
    """1, then 1, 2, 4 … visits of the same pair; `max_epoch_steps` ends the others."""
    spec = CmdpSpec(**{**SMALL, "support": [[[1, 0]], [[0, 1]]]})
    learner = ContinuingPsrl(spec, max_epoch_steps=10)
    state, starts = learner.initial_state(), []
    for step in range(40):
        if state.epoch_is_over:
            starts.append(step)
            state, _ = learner.start_epoch(state, 0)
        state = learner.observe(state, Transition(step, 0, 0, 0))
    assert starts == [0, 1, 2, 4, 8, 16, 26, 36]


def test_what_is_known_counts_as_visits() -> None:
    """A warm start makes the first epoch longer."""
    spec = CmdpSpec(**SMALL)
    learner = ContinuingPsrl(spec)
    state = learner.initial_state(InitialCounts(np.full((1, 2, 1, 2), 2.0)))
    state, _ = learner.start_epoch(state, 0)
    for step in range(4):
        assert not state.epoch_is_over
        state = learner.observe(state, Transition(step, 0, 0, 0))
    assert state.epoch_is_over


def test_impossible_observations_change_nothing() -> None:
    """Steps come in order, without gaps; states and actions must exist."""
    learner = ContinuingPsrl(CmdpSpec(**SMALL))
    state, plan = learner.start_epoch(learner.initial_state(), 1)
    for transition, field in ((Transition(1, 0, 0, 0), "step = 1: must be 0"), (Transition(0, 2, 0, 0), "state = 2")):
        with pytest.raises(TransitionError, match=field):
            learner.observe(state, transition)
    with pytest.raises(SpecError, match="start = 2"):
        learner.start_epoch(state, 2)
    with pytest.raises(SpecError, match="step = -1"):
        learner.act(plan, -1, 0)
    assert state.step == 0


def test_actions_are_drawn_by_step_and_repeat() -> None:
    """Asked again, an action is the same; over steps, each comes with its probability."""
    run = buffer_run("certified")
    run.advance(5_000)
    learner, plan = run.learner, run.learner.plan(run.state, 5_000, 0)
    place = int(np.argmax(np.minimum(plan.probabilities[:, 0], plan.probabilities[:, 1])))
    actions = [learner.act(plan, step, place) for step in range(4_000)]
    assert actions == [learner.act(plan, step, place) for step in range(4_000)]
    assert np.mean(actions) == pytest.approx(plan.probabilities[place, 1], abs=0.03)


def test_certified_keeps_the_average_within_the_budget() -> None:
    """No epoch has a true average cost above the budget, from the first on; and it learns."""
    run = buffer_run("certified")
    run.advance(20_000)
    early = run.ledger.objective_regret[0]
    assert run.ledger.strong_violation[0] == 0.0
    assert run.ledger.constraint_regret_max[0] < 30.0
    run.advance(20_000)
    late = run.ledger.objective_regret[0] - early
    assert run.ledger.strong_violation[0] < 1.0
    assert late < early / 1.2
    assert late / 20_000 < 0.08


@pytest.mark.slow
def test_certified_comes_close_to_the_optimum() -> None:
    """After a million steps the plans lose less than 2 % of the optimum in the mean; without the mean's plans, 3 %."""
    losses = []
    for seed in range(1, 6):
        run = buffer_run("certified", seed)
        run.advance(950_000)
        while run.episode < 1_000_000:
            run.advance(1)  # the first step of an epoch, or of the rest of it
            reward = average_reward(run)
            run.advance(min(999, 1_000_000 - run.episode))
            losses.append(1 - reward / run.world.best_reward)
        assert run.ledger.constraint_regret_max[0] < 100
    assert np.mean(losses) < 0.02


def average_reward(run: ContinuingRun) -> float:
    """The true average reward per step of the policy in force."""
    policy, p = run.course.probabilities, run.world.p[0]
    chain = np.einsum("sa,sat->st", policy, p)
    balance = np.vstack([chain.T - np.eye(len(chain)), np.ones(len(chain))])
    occupancy = np.linalg.lstsq(balance, np.append(np.zeros(len(chain)), 1.0), rcond=None)[0]
    return float((occupancy[:, None] * policy * run.world.signals[0, 0]).sum())


def test_a_certificate_is_within_the_budget_and_says_what_it_rests_on() -> None:
    """Certain at first, confident later; the paper's methods have none."""
    run = buffer_run("certified")
    first = run.learner.plan(run.state, 0, 0)
    run.advance(20_000)
    later = run.learner.plan(run.state, 0, 0)
    assert (first.certificate, later.certificate) == ("certain", "confidence")
    assert first.certified_costs[0] <= 0.5
    assert later.certified_costs[0] <= 0.5
    assert later.predicted_costs[0] > 0.3
    papers = buffer_run("published")
    plan = papers.learner.plan(papers.state, 0, 0)
    assert plan.certified_costs is None
    assert plan.certificate == ""


def test_plans_are_from_the_current_state() -> None:
    """Where a state cannot be left, the plan is for what can be reached from it, and says when no budget can be kept."""
    spec, _ = trap(2)
    learner = ContinuingPsrl(spec, SafePsrlOptions("certified"), 1)
    state = learner.initial_state()
    _, safe = learner.start_epoch(state, 1)
    _, lost = learner.start_epoch(state, 0)
    _, between = learner.start_epoch(state, 2)
    assert (safe.certificate, safe.certified_costs[0]) == ("confidence", pytest.approx(0.0, abs=1e-6))
    assert (lost.certificate, lost.certified_costs[0]) == ("none", pytest.approx(1.0, abs=1e-5))
    assert between.certified_costs[0] == pytest.approx(0.25, abs=1e-3)
    assert between.probabilities[2] == pytest.approx([0.25, 0.75], abs=1e-3)
    assert between.predicted_reward == pytest.approx(0.625, abs=1e-3)


@pytest.mark.parametrize("method", ["certified", "published"])
def test_several_constraints(method: str) -> None:
    """Each has its bound or its dual variable."""
    case = continuing_case(3, num_constraints=2, share=0.7)
    run = ContinuingRun(ContinuingPsrl(case.spec, SafePsrlOptions(method), 1), case.p, environment_seed=1)
    run.advance(3_000)
    plan = run.learner.plan(run.state, 0, 0)
    assert plan.next_dual_variables.shape == (2,)
    if method == "certified":
        assert (plan.certified_costs <= case.spec.cost_budgets + 1e-6).all()
        assert run.ledger.strong_violation.max() < 100.0


def test_drift_is_noticed_and_forgotten() -> None:
    """Read when an epoch starts; the bound rises again with what is forgotten."""
    run = buffer_run("certified", drift=DriftOptions(detect=True, on_detect="forget", false_alarm_steps=1e4))
    run.advance(5_000)
    assert run.ledger.detections[0] == 0
    run.move_to(KERNELS["continuing-buffer"](departure=0.3))
    run.advance(5_000)
    assert run.ledger.detections[0] >= 1
    assert run.state.transition_counts.sum() < 10_000


def test_tasks_and_learners_must_fit() -> None:
    """Each learner names the other."""
    with pytest.raises(SpecError, match="use SafePsrl for a problem with episodes"):
        ContinuingPsrl(preset("streaming-buffer"))
    learner = SafePsrl(preset("continuing-buffer"), always_satisfiable=True)
    with pytest.raises(SpecError, match="has no episodes: use ContinuingPsrl"):
        learner.start_episode(learner.initial_state())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stationary": False}, "stationary = False: must be true in a continuing task"),
        ({"reward": [[[0], [1]]]}, "shape of reward"),
        ({"constraints": [Constraint("cost", [[0], [1]], 1.5, 0.1)]}, "must be above 0 and at most 1, an average per step"),
        ({"horizon": "endless"}, "horizon = 'endless': must be a whole number"),
        ({"horizon": 0}, "horizon = 0: must be a whole number, at least 1"),
    ],
)
def test_specifications_of_continuing_tasks(changes: dict[str, Any], message: str) -> None:
    """Budgets are averages per step, and every step is alike."""
    assert CmdpSpec(**SMALL).is_continuing
    with pytest.raises(SpecError) as error:
        CmdpSpec(**{**SMALL, **changes})
    assert message in str(error.value)


def test_warm_kernels_compile_nothing_more() -> None:
    """After `warm_up_continuing`, lists and masks find every kernel ready."""
    warm_up_continuing()
    before = signatures()
    cases: list[Case] = [continuing_case(1, share=0.8), listed_case(continuing_case(2, masked=True, share=0.8))]
    for spec, p in cases:
        for method in ("certified", "published"):
            ContinuingRun(ContinuingPsrl(spec, SafePsrlOptions(method)), p).advance(3)
    assert signatures() == before
