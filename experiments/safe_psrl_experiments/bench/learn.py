"""`bench learn`: what a simulated episode of Safe PSRL on the streaming buffer costs, against its plain twin and bare draws."""

from collections.abc import Callable

import numpy as np

from safe_psrl.learner import SafePsrl
from safe_psrl.simulation import SimulatedRun
from safe_psrl_experiments.bench.measure import Result, interleaved, judged
from safe_psrl_experiments.plain import PlainRun
from safe_psrl_testbed import scenario_named

PIECE, PLAIN_PIECE, PLAYED = 2_000, 40, 5_000


def bench_learn(rounds: int = 15, report: Callable[[str], None] = lambda _: None) -> list[Result]:
    report("streaming-buffer: compiled run, plain twin and bare gamma draws, in turn")
    scenario = scenario_named("streaming-buffer")
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
        judged("simulated episode, compiled", times["compiled"], times["gamma"], draws, bar=("<=", 2.5)),
        judged("simulated episode, plain numpy", times["plain"], times["compiled"], "compiled episode", bar=(">=", 8)),
    ]
