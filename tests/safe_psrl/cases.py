"""Small random problems and slow, obvious judges that several files share."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions, preset
from safe_psrl.learner import Plan
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.problem.documents import spec_from_document, spec_to_document
from safe_psrl_testbed.kernels import KERNELS

Floats = NDArray[np.float64]


class Case(NamedTuple):
    """A problem and a kernel [1|H, S, A, S] on its support."""

    spec: CmdpSpec
    p: Floats


def spec_of(horizon: int, reward: Any, *constraints: Constraint, **more: Any) -> CmdpSpec:
    """A specification with the sizes of its reward table."""
    num_states, num_actions = np.shape(reward)[-2:]
    sizes = {"num_states": num_states, "num_actions": num_actions, "horizon": horizon}
    return CmdpSpec(**sizes, reward=reward, constraints=constraints, **more)


def random_case(
    seed: int,
    sizes: tuple[int, int, int],
    *,
    num_constraints: int = 1,
    masked: bool = False,
    step_signals: bool = False,
    per_step: bool = False,
    learned: bool = False,
    binary_costs: bool = False,
) -> Case:
    """Sizes are S, A, H. Masked: random unavailable actions and impossible next states; each state keeps one of both."""
    num_states, num_actions, horizon = sizes
    rng = np.random.default_rng(seed)
    kernel_steps, signal_steps = (horizon if per_step else 1), (horizon if step_signals else 1)
    pair = (num_states, num_actions)
    available, support = np.ones(pair, np.bool_), np.ones((kernel_steps, *pair, num_states), np.bool_)
    if masked:
        available = rng.random(pair) < 0.6
        available[np.arange(num_states), rng.integers(num_actions, size=num_states)] = True
        support = rng.random(support.shape) < 0.6
        np.put_along_axis(support, rng.integers(num_states, size=(*support.shape[:-1], 1)), values=True, axis=-1)
    weights = np.where(support, rng.gamma(0.5, size=support.shape) + 1e-9, 0.0)
    signals = rng.random((1 + num_constraints, signal_steps, *pair))
    if binary_costs:
        signals[1:] = rng.random(signals[1:].shape) < 0.4
    budgets = horizon * (0.7 + 0.25 * rng.random(num_constraints))
    start = rng.dirichlet(np.ones(num_states))
    tables = signals if step_signals else signals[:, 0]
    spec = spec_of(
        horizon,
        tables[0],
        *(Constraint(f"cost-{i}", tables[1 + i], tau, 0.3 * tau, learned=learned) for i, tau in enumerate(budgets.tolist())),
        reward_learned=learned,
        initial_distribution=start,
        available_actions=available,
        support=support if per_step else support[0],
        stationary=not per_step,
    )
    return Case(spec, weights / weights.sum(axis=-1, keepdims=True))


def listed_case(case: Case) -> Case:
    """The same problem and kernel, next states being listed in place of masked."""
    spec, support = case.spec, case.spec.support
    width = int(support.sum(axis=-1).max())
    places = np.argsort(~support, axis=-1, kind="stable")[..., :width]  # the possible ones first, in order
    possible = np.take_along_axis(support, places, axis=-1)
    steps = slice(None) if len(support) > 1 else 0
    document = spec_to_document(spec)
    document.pop("support", None)
    document["next_states"] = np.where(possible, places, -1)[steps].tolist()
    document["dirichlet_prior"] = np.take_along_axis(spec.dirichlet_prior, places, axis=-1)[steps].tolist()
    listed = spec_from_document(document)
    return Case(listed, np.take_along_axis(case.p, places, axis=-1))


def over_all_states(spec: CmdpSpec, table: NDArray[np.generic]) -> NDArray[np.generic]:
    """A table over listed next states [L, S, A, W] as one over all of them."""
    full = np.zeros((*table.shape[:-1], spec.num_states), table.dtype)
    for place in np.argwhere(spec.support):
        h, s, a, j = place.tolist()
        full[h, s, a, spec.next_states[h % len(spec.next_states), s, a, j]] = table[h, s, a, j]
    return full


def deterministic_policies(spec: CmdpSpec) -> Iterator[NDArray[np.int32]]:
    """Every deterministic policy [H, S] of available actions."""
    choices = [np.flatnonzero(row).tolist() for row in spec.available_actions] * spec.horizon
    for actions in itertools.product(*choices):
        yield np.array(actions, np.int32).reshape(spec.horizon, spec.num_states)


def forward_totals(spec: CmdpSpec, p: Floats, policy: NDArray[np.int32]) -> Floats:
    """[1+M]: expected sums of the signals, by pushing the distribution of the state forward."""
    states = np.arange(spec.num_states)
    reached, totals = spec.initial_distribution, np.zeros(1 + spec.num_constraints)
    for h, actions in enumerate(policy):
        totals = totals + spec.signals[:, h % spec.signals.shape[1], states, actions] @ reached
        reached = reached @ p[h % len(p), states, actions]
    return totals


def planned(spec: CmdpSpec, p: Floats, weights: Sequence[float] | Floats) -> tuple[NDArray[np.int32], Floats]:
    """The policy [H, S] that is best by the weighted sum of the signals, and each signal's value [1+M, S]."""
    policy = np.empty((spec.horizon, spec.num_states), np.int32)
    values = np.empty((1 + spec.num_constraints, spec.num_states))
    stop = np.zeros(1, np.bool_)
    plan_policy(p, spec.next_states, spec.signals, np.array(weights), spec.available_actions, policy, values, stop)
    return policy, values


def first_plan(spec: CmdpSpec, options: SafePsrlOptions | None = None, seed: int = 0) -> Plan:
    """Of a learner that has seen nothing."""
    learner = SafePsrl(spec, options or SafePsrlOptions(), seed=seed)
    return learner.start_episode(learner.initial_state())[1]


TWO_CONSTRAINTS = spec_of(  # the streaming buffer with a second budget, on the slow service
    10,
    np.repeat(np.arange(10) > 0, 2).reshape(10, 2),
    Constraint("fast", np.tile([1.0, 0.0], (10, 1)), 5.0, 1.0),
    Constraint("slow", np.tile([0.0, 1.0], (10, 1)), 9.0, 2.0),
)


def named_case(name: str) -> Case:
    """A preset with its true kernel, or one of the other kinds of problem."""
    if name in KERNELS:
        return Case(preset(name), KERNELS[name]()[None])
    if name == "two-constraints":
        return Case(TWO_CONSTRAINTS, KERNELS["streaming-buffer"]()[None])
    if name.startswith("listed"):
        return listed_case(random_case(6, (6, 3, 5), masked=True, per_step=name == "listed-per-step"))
    return random_case(8, (4, 3, 5), **{"per-step": {"per_step": True, "step_signals": True}, "masked": {"masked": True}}[name])
