"""`bench plan`: planning and drawing larger kernels, against BLAS and numpy's own gamma draws, one core each.

First the two by themselves, then whole starts of episodes, from few states to many (`growth`).
"""

from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.problem.support import EVERY_STATE
from safe_psrl_experiments.bench.growth import bench_growth
from safe_psrl_experiments.bench.measure import Bar, Result, interleaved, judged

NUM_ACTIONS = 4
SIZES = ((100, 20), (100, 50), (500, 20), (500, 50))  # states, horizon
JUDGED = (500, 50)


def bench_plan(rounds: int = 15, report: Callable[[str], None] = lambda _: None) -> list[Result]:
    results: list[Result] = []
    for num_states, horizon in SIZES:
        report(f"S = {num_states}, A = {NUM_ACTIONS}, H = {horizon}")
        results += _bench_size(num_states, horizon, rounds)
    return results + bench_growth(rounds, report)


def _bench_size(num_states: int, horizon: int, rounds: int) -> list[Result]:
    generator = np.random.Generator(np.random.SFC64(1))
    shape = (1, num_states, NUM_ACTIONS, num_states)
    prior, counts = np.full(shape, 0.1), generator.poisson(0.5, shape)
    alpha, gammas, p = prior + counts, np.empty(shape), np.empty(shape)
    stream = stream_of(0, 1, POSTERIOR)
    draw_kernel(stream, prior, counts, p)
    kernel, signals = p.copy(), generator.random((2, 1, num_states, NUM_ACTIONS))
    weights, available = np.array([1.0, -0.5]), np.ones((num_states, NUM_ACTIONS), np.bool_)
    policy, values = np.empty((horizon, num_states), np.int32), np.empty((2, num_states))
    rows, vector, product = kernel.reshape(-1, num_states), generator.random(num_states), np.empty(num_states * NUM_ACTIONS)

    def multiply() -> None:
        for _ in range(horizon):
            np.dot(rows, vector, out=product)

    # Planning and its limit take turns by themselves: draws in between would empty the cache for one of the two alone.
    with threadpool_limits(1):
        times = interleaved(
            {
                "plan": (lambda: plan_policy(kernel, EVERY_STATE, signals, weights, available, policy, values), 1),
                "blas": (multiply, 1),
            },
            rounds,
        ) | interleaved(
            {
                "draw": (lambda: draw_kernel(stream, prior, counts, p), 1),
                "gamma": (lambda: generator.standard_gamma(alpha, out=gammas), 1),
            },
            rounds,
        )
    size = f"S={num_states} A={NUM_ACTIONS} H={horizon}"
    plan_bar: Bar | None = ("<=", 1.5) if (num_states, horizon) == JUDGED else None
    draw_bar: Bar | None = ("<=", 1.3) if (num_states, horizon) == JUDGED else None
    products = f"{horizon} products [{num_states * NUM_ACTIONS}, {num_states}] by BLAS"
    return [
        judged(f"plan {size}", times["plan"], times["blas"], products, bar=plan_bar),
        judged(f"draw a kernel {size}", times["draw"], times["gamma"], f"{alpha.size:,} gamma draws by numpy", bar=draw_bar),
    ]
