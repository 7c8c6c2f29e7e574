"""`bench learn`: what a simulated episode on the streaming buffer costs.

Safe PSRL against its plain twin and bare draws; DOPE and OptCMDP, which plan by an extended linear program, against HiGHS. Also
the settling of a step, with the detector of drift against without.
"""

import numpy as np

from safe_psrl.learner import AgentState, SafePsrl, act
from safe_psrl.problem.options import DriftOptions
from safe_psrl.simulation import SimulatedRun
from safe_psrl.transition import Transition
from safe_psrl_experiments.baselines.optimistic import DopeRun, OptCmdpRun, OptimisticRun
from safe_psrl_experiments.bench.extended_lp import solve_extended_lp
from safe_psrl_experiments.bench.measure import Report, Result, interleaved, judged, silent
from safe_psrl_experiments.plain import PlainRun
from safe_psrl_testbed import Scenario, scenario_named

PIECE, PLAIN_PIECE, PLAYED = 2_000, 40, 5_000
PUBLISHED_EPISODES = 400_000
OPTIMISTIC_PIECE, OPTIMISTIC_LIMIT = 200, 300.0  # the limit in microseconds an episode
SETTLE_PIECE = 500
DOPE_PLAYED = 13_000  # more than K0 = 12,500: from here on it plans


def bench_learn(rounds: int = 15, report: Report = silent) -> list[Result]:
    scenario = scenario_named("streaming-buffer")
    report("streaming-buffer: compiled run, plain twin and bare gamma draws, in turn")
    results = _bench_safe_psrl(scenario, rounds)
    report("streaming-buffer: settling an episode with the detector of drift and without, in turn")
    results += _bench_settle(scenario, rounds)
    report("streaming-buffer: DOPE and OptCMDP compiled, and their linear programs by HiGHS, in turn")
    return results + _bench_optimistic(scenario, rounds)


def _bench_safe_psrl(scenario: Scenario, rounds: int) -> list[Result]:
    transitions = scenario.transitions_for(1)
    run = SimulatedRun(SafePsrl(scenario.spec, seed=1), transitions, environment_seed=1)
    run.advance(PLAYED)
    plain = PlainRun(scenario.spec, transitions, run.world.best_reward, seed=1, environment_seed=1)
    state = run.state
    plain.episode, plain.dual = run.episode, state.dual_variables
    plain.counts = state.transition_counts.astype(np.float64)
    alpha = scenario.spec.dirichlet_prior + state.transition_counts
    generator = np.random.Generator(np.random.SFC64(1))
    many = np.tile(alpha.ravel(), PIECE)  # one call, so that the limit has no overhead of calls
    times = interleaved(
        {
            "compiled": (lambda: run.advance(PIECE), PIECE),
            "plain": (lambda: plain.advance(PLAIN_PIECE), PLAIN_PIECE),
            "gamma": (lambda: generator.standard_gamma(many), PIECE),
        },
        rounds,
    )
    draws = f"{alpha.size} gamma draws by numpy"
    return [
        judged("simulated episode, compiled", times["compiled"], times["gamma"], draws, bar=("<=", 5)),
        judged("simulated episode, plain numpy", times["plain"], times["compiled"], "compiled episode", bar=(">=", 8)),
    ]


def _bench_settle(scenario: Scenario, rounds: int) -> list[Result]:
    plain = SafePsrl(scenario.spec, seed=1)
    watching = SafePsrl(scenario.spec, seed=1, drift=DriftOptions(detect=True))
    steps = SETTLE_PIECE * scenario.spec.horizon
    before, watched = _played(plain, scenario), _played(watching, scenario)
    times = interleaved(
        {"plain": (lambda: _settle(plain, before), steps), "watching": (lambda: _settle(watching, watched), steps)}, rounds
    )
    return [judged("settle a step, with drift detection", times["watching"], times["plain"], "without", bar=("<=", 1.3))]


def _played(learner: SafePsrl, scenario: Scenario) -> AgentState:
    """After an episode that is not settled yet."""
    state, plan = learner.start_episode(learner.initial_state())
    environment = scenario.environment(1)
    now = environment.reset()
    for step in range(scenario.spec.horizon):
        action = act(plan, step, now)
        after = environment.step(action).next_state
        state = learner.observe(state, Transition(step, now, action, after))
        now = after
    return state


def _settle(learner: SafePsrl, state: AgentState) -> None:
    for _ in range(SETTLE_PIECE):
        learner.settle(state)


def _bench_optimistic(scenario: Scenario, rounds: int) -> list[Result]:
    transitions = scenario.transitions_for(1)
    dope = DopeRun(scenario.spec, transitions, 1, PUBLISHED_EPISODES)
    optcmdp = OptCmdpRun(scenario.spec, transitions, 1, PUBLISHED_EPISODES)
    dope.advance(DOPE_PLAYED)
    optcmdp.advance(PLAYED)
    times = interleaved(
        {
            "DOPE": (lambda: dope.advance(OPTIMISTIC_PIECE), OPTIMISTIC_PIECE),
            "DOPE by HiGHS": (lambda: _solve_by_highs(dope), 1),
            "OptCMDP": (lambda: optcmdp.advance(OPTIMISTIC_PIECE), OPTIMISTIC_PIECE),
            "OptCMDP by HiGHS": (lambda: _solve_by_highs(optcmdp), 1),
        },
        rounds,
    )
    results: list[Result] = []
    for name in ("DOPE", "OptCMDP"):
        highs = times[f"{name} by HiGHS"]
        results += [
            judged(f"{name}'s program by HiGHS", highs, times[name], f"compiled episode of {name}", bar=(">=", 50)),
            judged(f"episode of {name}, compiled", times[name], OPTIMISTIC_LIMIT, "0.3 ms", bar=("<=", 1)),
        ]
    return results


def _solve_by_highs(run: OptimisticRun) -> None:
    """The program of the run's next episode."""
    box, problem = run.box, run.problem
    solve_extended_lp(
        box.low, box.high, box.reward, box.cost, problem.available, problem.initial, float(problem.tau[0]), run.world.horizon
    )
