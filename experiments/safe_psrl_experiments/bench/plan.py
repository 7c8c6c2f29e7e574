"""`bench plan`: planning and drawing kernels against BLAS and numpy's gamma draws, and the start of an episode as states grow.

With tables over all next states, drawing and planning is compared with its bare work: a gamma draw for each entry of the
kernel, and a product of the kernel with a vector for each step. The learner's whole step also settles the last episode.
With listed next states, the learner's whole step is compared with a second and 500 MB, each size in its own process.
Certified plans draw one kernel and plan on it many times; they have no bar. Up to 1,000 states, they are compared with the same
bare work, which has one plan.

Starts are measured in processor time, so that other work on the machine is not counted. Every measurement uses one core.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.methods.episode import begin_episode, empty_draft
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.options import CERTIFIED, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.problem.support import EVERY_STATE
from safe_psrl.transition import Transition
from safe_psrl_experiments.bench.measure import (
    Bar,
    Report,
    Result,
    interleaved,
    interleaved_times,
    judged,
    judged_times,
    process_kilobytes,
    silent,
)

NUM_ACTIONS: Final = 4
HORIZON: Final = 50
PARTS: Final = ((100, 20), (100, 50), (500, 20), (500, 50))  # states, horizon
JUDGED: Final = (500, 50)
OVER_ALL: Final = (10, 30, 100, 300, 500, 1_000, 2_000)  # states
LISTED: Final = (1_000, 5_000, 20_000)
WIDTH: Final = 8  # next states of a pair, where they are listed
LAST_JUDGED: Final = 1_000  # states of the largest problem over all next states that has a bar
LAST_CERTIFIED: Final = 1_000  # states of the largest one with a certified plan, which takes seconds
MOST_RATIO: Final = 2.5  # of drawing and planning to its bare work
MOST_SECONDS: Final = 1.0
MOST_MEGABYTES: Final = 500.0
MOST_ENTRIES: Final = 5_000_000  # drawn in the rounds of one size: beyond it there are fewer rounds, of seconds each
FEWEST_ROUNDS: Final = 3
BEGIN: Final = "draw and plan"
START: Final = "start an episode"
START_CERTIFIED: Final = "start a certified episode"


def bench_plan(rounds: int = 15, report: Report = silent) -> list[Result]:
    results: list[Result] = []
    for num_states, horizon in PARTS:
        report(f"plan and draw: S = {num_states}, A = {NUM_ACTIONS}, H = {horizon}")
        results += _parts(num_states, horizon, rounds)
    for num_states in OVER_ALL:
        report(f"{START}: S = {num_states:,}")
        results += _over_all(num_states, rounds)
    for num_states in LISTED:
        report(f"{START}: S = {num_states:,}, {WIDTH} next states")
        results += _listed(num_states, rounds)
    return results


def _parts(num_states: int, horizon: int, rounds: int) -> list[Result]:
    generator = np.random.Generator(np.random.SFC64(1))
    shape = (1, num_states, NUM_ACTIONS, num_states)
    prior, counts = np.full(shape, 0.1), generator.poisson(0.5, shape).astype(np.float64)
    alpha, gammas, p = prior + counts, np.empty(shape), np.empty(shape)
    stream = stream_of(0, 1, POSTERIOR)
    draw_kernel(stream, prior, counts, p)
    kernel, signals = p.copy(), generator.random((2, 1, num_states, NUM_ACTIONS))
    weights, available = np.array([1.0, -0.5]), np.ones((num_states, NUM_ACTIONS), np.bool_)
    policy, values, stop = np.empty((horizon, num_states), np.int32), np.empty((2, num_states)), np.zeros(1, np.bool_)
    rows, vector, product = kernel.reshape(-1, num_states), generator.random(num_states), np.empty(num_states * NUM_ACTIONS)

    def multiply() -> None:
        for _ in range(horizon):
            np.dot(rows, vector, out=product)

    # Planning and drawing are measured apart: draws in between would empty the cache before one of the other two.
    with threadpool_limits(1):
        times = interleaved(
            {
                "plan": (lambda: plan_policy(kernel, EVERY_STATE, signals, weights, available, policy, values, stop), 1),
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
    draw_bar: Bar | None = ("<=", 2.5) if (num_states, horizon) == JUDGED else None
    products = f"{horizon} products [{num_states * NUM_ACTIONS}, {num_states}] by BLAS"
    return [
        judged(f"plan {size}", times["plan"], times["blas"], products, bar=plan_bar),
        judged(f"draw a kernel {size}", times["draw"], times["gamma"], f"{alpha.size:,} gamma draws by numpy", bar=draw_bar),
    ]


def _over_all(num_states: int, rounds: int) -> list[Result]:
    learner = SafePsrl(_problem(num_states, None))
    spec, state = learner.spec, _played(learner)
    settled, draft = learner.settle(state), empty_draft(spec, certified=False)
    duals, counts = settled.dual_variables, settled.transition_counts
    generator = np.random.Generator(np.random.SFC64(1))
    alpha = spec.dirichlet_prior + counts
    gammas, rows = np.empty(alpha.shape), generator.random((num_states * NUM_ACTIONS, num_states))
    vector, product = generator.random(num_states), np.empty(num_states * NUM_ACTIONS)

    def limit() -> None:
        generator.standard_gamma(alpha, out=gammas)
        for _ in range(HORIZON):
            np.dot(rows, vector, out=product)

    tasks: dict[str, Callable[[], object]] = {
        "begin": lambda: begin_episode(learner.problem, spec.signals, 0, 2, counts, duals, draft),
        "limit": limit,
        "start": lambda: learner.start_episode(state),
    }
    fewer = max(min(rounds, FEWEST_ROUNDS), min(rounds, MOST_ENTRIES // alpha.size))
    if num_states <= LAST_CERTIFIED:
        certified = _certified(spec)
        certified_state = _played(certified)
        tasks["certified"] = lambda: certified.start_episode(certified_state)
    with threadpool_limits(1):
        times = interleaved_times({name: (task, 1) for name, task in tasks.items()}, fewer, time.thread_time)
    bar: Bar | None = ("<=", MOST_RATIO) if num_states <= LAST_JUDGED else None
    what = f"{alpha.size:,} gamma draws, {HORIZON} products by BLAS"
    results = [
        judged_times(f"{BEGIN} {_size(num_states)}", times["begin"], times["limit"], what, bar=bar),
        judged_times(f"{START} {_size(num_states)}", times["start"], times["limit"], what),
    ]
    if "certified" in times:
        results.append(judged_times(f"{START_CERTIFIED} {_size(num_states)}", times["certified"], times["limit"], what))
    return results


def _listed(num_states: int, rounds: int) -> list[Result]:
    command = [sys.executable, "-m", __name__, str(num_states), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # this very file
    found: dict[str, Any] = json.loads(done.stdout)
    size = f"{_size(num_states)}, {WIDTH} next states"
    name = f"{START} {size}"
    second, memory = [MOST_SECONDS * 1e6], [MOST_MEGABYTES]
    return [
        judged_times(name, found["times"], second, f"{MOST_SECONDS:g} s", bar=("<=", 1)),
        judged_times(f"memory to {name}", [found["megabytes"]], memory, f"{MOST_MEGABYTES:g} MB", "MB", ("<=", 1)),
        judged_times(f"{START_CERTIFIED} {size}", found["certified"], second, f"{MOST_SECONDS:g} s"),
    ]


def _size(num_states: int) -> str:
    return f"S={num_states} A={NUM_ACTIONS} H={HORIZON}"


def measure_listed(num_states: int, rounds: int) -> dict[str, Any]:
    """Microseconds of starts, and the most memory that this process had for the first kind of them."""
    learner = SafePsrl(_problem(num_states, WIDTH))
    times = {"times": _start_times(learner, rounds)}
    megabytes = process_kilobytes("VmHWM") * 1024 / 1e6
    return {**times, "megabytes": megabytes, "certified": _start_times(_certified(learner.spec), min(rounds, FEWEST_ROUNDS))}


def _start_times(learner: SafePsrl, rounds: int) -> list[float]:
    state = _played(learner)
    return interleaved_times({"start": (lambda: learner.start_episode(state), 1)}, rounds, time.thread_time)["start"]


def _certified(spec: CmdpSpec) -> SafePsrl:
    return SafePsrl(spec, SafePsrlOptions(CERTIFIED))


def _problem(num_states: int, width: int | None) -> CmdpSpec:
    """Random signals; action 0 is free, so that no draw need be rejected. `width` random next states of each pair, or all."""
    rng = np.random.default_rng(1)
    reward, cost = rng.random((2, num_states, NUM_ACTIONS))
    cost[:, 0] = 0.0
    listed = None
    if width is not None:  # ascending, and no two alike
        gaps = rng.integers(0, num_states - width + 1, (num_states, NUM_ACTIONS, width))
        listed = np.sort(gaps, axis=-1) + np.arange(width)
    return CmdpSpec(
        num_states=num_states,
        num_actions=NUM_ACTIONS,
        horizon=HORIZON,
        reward=reward,
        constraints=[Constraint("cost", cost, 0.25 * HORIZON, 0.0)],
        next_states=listed,
    )


def _played(learner: SafePsrl) -> AgentState:
    """After an episode, which the start of the next one has to count."""
    spec, rng, now = learner.spec, np.random.default_rng(2), 0
    state, plan = learner.start_episode(learner.initial_state())
    for step in range(HORIZON):
        action = int(plan.policy[step, now])
        place = int(rng.integers(spec.dirichlet_prior.shape[-1]))
        after = int(spec.next_states[0, now, action, place]) if spec.lists_next_states else place
        state = learner.observe(state, Transition(step, now, action, after))
        now = after
    return state


if __name__ == "__main__":
    print(json.dumps(measure_listed(*map(int, sys.argv[1:]))))  # noqa: T201
