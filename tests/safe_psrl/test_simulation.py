"""A simulated run is what a user's own loop of learner and environment does, to the bit, with exact accounts of its regret."""

import numpy as np
import pytest

from safe_psrl import (
    CmdpSpec,
    Constraint,
    SafePsrl,
    SafePsrlOptions,
    SimulatedRun,
    SpecError,
    Transition,
    act,
    exact_optimum,
    preset,
)
from safe_psrl.learner import AgentState, Plan, Tables
from safe_psrl.planning.optimum import cost_prices
from safe_psrl_experiments.algorithms import algorithm_named
from safe_psrl_testbed import TabularEnvironment
from safe_psrl_testbed.kernels import KERNELS
from tests.safe_psrl.cases import named_case, random_case, spec_of

PUBLISHED, CERTIFIED = SafePsrlOptions("published"), SafePsrlOptions("certified")
METHODS = pytest.mark.parametrize("options", [PUBLISHED, CERTIFIED], ids=["published", "certified"])
CASES = [
    *("streaming-buffer", "inventory", "factored-toy", "two-constraints"),
    *("per-step", "masked", "listed", "listed-per-step"),
]


def played(learner: SafePsrl, environment: TabularEnvironment, episodes: int, seed: int) -> tuple[AgentState, Plan]:
    """The loop that a user writes: its state, and the last plan."""
    state = learner.initial_state()
    for k in range(episodes):
        state, plan = learner.start_episode(state)
        now, done, step = environment.reset(seed if k == 0 else None), False, 0
        while not done:
            action = act(plan, step, now)
            after, reward, costs, done = environment.step(action)
            state = learner.observe(state, Transition(step, now, action, after, reward, costs))
            now, step = after, step + 1
    return learner.settle(state), plan


def assert_equal_states(one: AgentState, other: AgentState) -> None:
    assert one.episode == other.episode
    for field in ("dual_variables", *Tables._fields):
        assert getattr(one, field).tobytes() == getattr(other, field).tobytes(), field


def episodes_of(spec: CmdpSpec, options: SafePsrlOptions) -> int:
    """Fewer where each is planned by linear programs."""
    return 20 if options.is_certified and spec.num_constraints > 1 else 60


@METHODS
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_the_learner_in_the_environment_to_the_bit(name: str, options: SafePsrlOptions) -> None:
    """A simulated run and the user's own loop end in the same state, though one of them is compiled."""
    spec, p = named_case(name)
    learner, episodes = SafePsrl(spec, options, seed=2), episodes_of(spec, options)
    run = SimulatedRun(learner, p, environment_seed=9)
    run.advance(episodes)
    state, last = played(learner, TabularEnvironment(spec, p), episodes, 9)
    assert_equal_states(run.state, state)
    assert run.pessimism.tolist() == last.pessimism.tolist()
    assert run.episode == episodes


@METHODS
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("variant", [{}, {"num_constraints": 2, "masked": True}, {"step_signals": True, "per_step": True}])
def test_learned_signals_to_the_bit(noisy: bool, variant: dict, options: SafePsrlOptions) -> None:
    """Footnote 1: with reward and costs learned from what is paid, noisy or not, run and loop agree as well."""
    spec, p = random_case(6, (4, 3, 5), learned=True, **variant)
    learner, episodes = SafePsrl(spec, options, seed=2), episodes_of(spec, options)
    run = SimulatedRun(learner, p, environment_seed=9, noisy=noisy)
    run.advance(episodes)
    state, _ = played(learner, TabularEnvironment(spec, p, noisy=noisy), episodes, 9)
    assert_equal_states(run.state, state)
    assert state.visits.sum() == episodes * spec.horizon
    assert not noisy or set(np.unique(state.signal_sums % 1)) == {0.0}


def test_true_signals_replace_the_guess() -> None:
    """The world pays and judges by its true signals; the specification's are the learner's guess only."""
    truth, p = random_case(6, (4, 3, 5), learned=True, num_constraints=2)
    limits = zip(truth.constraint_names, truth.cost_budgets.tolist(), truth.satisfiable_costs.tolist(), strict=True)
    constraints = [Constraint(name, np.zeros((4, 3)), tau, c0, learned=True) for name, tau, c0 in limits]
    start = truth.initial_distribution
    guess = spec_of(5, np.full((4, 3), 0.5), *constraints, reward_learned=True, initial_distribution=start)
    learner = SafePsrl(guess, seed=2)
    run = SimulatedRun(learner, p, environment_seed=9, true_signals=truth.signals)
    run.advance(60)
    assert_equal_states(run.state, played(learner, TabularEnvironment(truth, p), 60, 9)[0])
    assert run.world.best_reward == pytest.approx(exact_optimum(truth, p).reward, abs=1e-12)
    assert run.world.best_reward != pytest.approx(exact_optimum(guess, p).reward, abs=1e-3)


@METHODS
@pytest.mark.parametrize("name", ["streaming-buffer", "inventory"])
def test_advancing_in_pieces_is_advancing_at_once(name: str, options: SafePsrlOptions) -> None:
    """A run may be stopped and continued between any two episodes: state and ledger do not change by a bit."""
    learner = SafePsrl(preset(name), options, seed=1)
    whole, pieces = (SimulatedRun(learner, KERNELS[name](), environment_seed=3) for _ in range(2))
    whole.advance(500)
    for piece in (0, 1, 1, 98, 400):
        pieces.advance(piece)
    assert_equal_states(whole.state, pieces.state)
    assert pieces.pessimism.tolist() == whole.pessimism.tolist()
    for one, other in zip(whole.ledger, pieces.ledger, strict=True):
        assert one.tobytes() == other.tobytes()


def test_ledger_keeps_the_greatest_constraint_regret_and_counts_violations() -> None:
    """Eqs. (4) and (5): signed sums; beside them the running maximum, and the episodes above the budget."""
    run = SimulatedRun(SafePsrl(preset("streaming-buffer"), seed=1), KERNELS["streaming-buffer"](), environment_seed=3)
    regrets = [0.0]
    for _ in range(200):
        run.advance(1)
        regrets.append(float(run.ledger.constraint_regret[0]))
    assert run.ledger.constraint_regret_max[0] == max(regrets)
    assert run.ledger.violating_episodes[0] == (np.diff(regrets) > 1e-9).sum() > 0


@pytest.mark.parametrize("method", ["published", "certified"])
@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy"])
def test_priced_regret_grows_in_every_episode(name: str, method: str) -> None:
    """Objective regret falls where an episode overspends its budget; at the price of the budget nothing is gained."""
    run = SimulatedRun(SafePsrl(preset(name), SafePsrlOptions(method), seed=1), KERNELS[name](), environment_seed=3)
    priced, objective = [0.0], [0.0]
    for _ in range(300):
        run.advance(1)
        priced.append(float(run.ledger.priced_regret[0]))
        objective.append(float(run.ledger.objective_regret[0]))
    assert np.diff(priced).min() >= -1e-6
    strong = float(run.ledger.strong_violation[0])
    assert priced[-1] == pytest.approx(objective[-1] + cost_prices(preset(name), KERNELS[name]())[0] * strong)
    if method == "published":
        assert strong > 0.0


def test_overspending_lowers_objective_regret_but_not_priced_regret() -> None:
    """Without a dual variable the learner earns more than the optimum within the budget."""
    spec = preset("streaming-buffer")
    run = algorithm_named("psrl").start(spec, KERNELS["streaming-buffer"](), {}, 1, 500)
    run.advance(500)
    assert run.ledger.objective_regret[0] < -100.0
    assert run.ledger.priced_regret[0] > 100.0


@pytest.mark.parametrize("seed", [-1, 2**63, True, 0.5])
def test_environment_seeds_outside_their_range_are_refused(seed: object) -> None:
    """As the learner's: a whole number from 0 to 2^63 - 1."""
    with pytest.raises(SpecError, match=r"^environment_seed = "):
        SimulatedRun(SafePsrl(preset("factored-toy")), KERNELS["factored-toy"](), environment_seed=seed)


def test_a_run_does_not_go_back() -> None:
    """A negative number of episodes is refused; the run stays where it is."""
    run = SimulatedRun(SafePsrl(preset("factored-toy")), KERNELS["factored-toy"]())
    run.advance(3)
    with pytest.raises(SpecError, match=r"^episodes = -1"):
        run.advance(-1)
    assert run.episode == 3


@pytest.mark.parametrize(
    ("signals", "message"),
    [(np.ones((2, 3, 2)), "shape of signals"), (np.full((2, 1, 3, 2), 1.5), r"signals\[0\]\[0\]\[0\]\[0\] = 1.5")],
)
def test_true_signals_are_checked(signals: np.ndarray, message: str) -> None:
    """They have the form of the specification's own: [1+M, 1|H, S, A], within [0, 1]."""
    with pytest.raises(SpecError, match=message):
        SimulatedRun(SafePsrl(preset("factored-toy")), KERNELS["factored-toy"](), true_signals=signals)
