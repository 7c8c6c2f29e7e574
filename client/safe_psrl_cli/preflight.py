"""The findings of `safe-psrl spec check`: what creating the agent checks, what it takes, what is assumed, and known traps."""

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl import dual_variable_bound, exact_optimum, feasibility_episode
from safe_psrl.arrays import Mask
from safe_psrl.learner import SafePsrl
from safe_psrl.methods.bounds import episodes_above_budget
from safe_psrl.methods.schedule import pessimism_at
from safe_psrl.problem.options import PESSIMISM_PRESETS
from safe_psrl.problem.spec import MIN_PRIOR, CmdpSpec
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import Definition, checked_definition
from safe_psrl_server.agents.status import definition_warnings
from safe_psrl_server.config import Limits
from safe_psrl_testbed import Scenario

TIMED_PLANS: Final = 5
LONG_PLAN_SECONDS: Final = 0.5  # a plan that takes longer is timed once
ENOUGH: Final = 0.999  # of the episodes
ROOM: Final = 4  # times the steps that are needed
REVISITS: Final = 50  # times the steps to the farthest state
MOST_WORK: Final = 10**8  # products; larger problems are not followed step by step


def findings_of(scenario: Scenario, message: model_pb2.AgentSpec) -> dict[str, Any]:
    """Raises `InvalidArgumentError` of the server, as creating the agent with default limits would."""
    definition = checked_definition(message, Limits())
    spec, learner = definition.spec, definition.learner
    optimum = None if scenario.transitions is None else exact_optimum(spec, scenario.transitions)
    constraints = [_constraint(learner, i) for i in range(spec.num_constraints)]
    return {
        "name": scenario.name,
        "num_states": spec.num_states,
        "num_actions": spec.num_actions,
        "horizon": spec.horizon,
        "method": learner.options.method,
        "seed": message.seed,
        "has_fallback": definition.fallback is not None,
        "constraints": constraints,
        "plan_seconds": _plan_seconds(learner),
        **_memory(definition),
        "assumptions": list(_assumptions(definition)),
        "warnings": list(_warnings(scenario, definition)),
        "optimum": optimum and {"reward": optimum.reward, "costs": optimum.costs.tolist()},
    }


def _constraint(learner: SafePsrl, i: int) -> dict[str, Any]:
    """Beyond the budget, only what the method has: the paper's pessimism and the bounds that it is proven with."""
    spec, options = learner.spec, learner.options
    tau, c0 = float(spec.cost_budgets[i]), float(spec.satisfiable_costs[i])
    found: dict[str, Any] = {"name": spec.constraint_names[i], "cost_budget": tau, "satisfiable_cost": c0}
    if options.method not in PESSIMISM_PRESETS:
        return found
    first = feasibility_episode(spec, i)
    first_pessimism = pessimism_at(1, spec.num_states, spec.num_actions, spec.horizon, options.pessimism_coefficient)
    if options.cap_pessimism:
        first_pessimism = min(first_pessimism, (tau - c0) / 2)
    return found | {
        "first_pessimism": first_pessimism,
        "episode_below_budget": 1 + episodes_above_budget(spec, options, i),
        "feasibility_episode": first,
        "dual_variable_bound": dual_variable_bound(spec, int(first), i),
    }


def _plan_seconds(learner: SafePsrl) -> float:
    """Of a first plan, as measured here. One before it loads the compiled code."""
    state = learner.initial_state()
    learner.plan(state)
    seconds: list[float] = []
    while len(seconds) < TIMED_PLANS:
        began = time.perf_counter()
        learner.plan(state)
        seconds.append(time.perf_counter() - began)
        if seconds[0] > LONG_PLAN_SECONDS:
            break
    return statistics.median(seconds)


def _memory(definition: Definition) -> dict[str, int]:
    """Bytes of one agent's own tables, and of those that agents of the same definition share."""
    state, spec = definition.learner.initial_state(), definition.spec
    own = (state.transition_counts, state.signal_sums, state.visits)
    shared = (spec.signals, spec.dirichlet_prior, spec.next_states, spec.available_actions)
    return {"agent_bytes": sum(t.nbytes for t in own), "shared_bytes": sum(t.nbytes for t in shared)}


def _assumptions(definition: Definition) -> Iterator[str]:
    spec, options = definition.spec, definition.learner.options
    yield "the kernel is the same at every step" if spec.stationary else "each step has its own kernel"
    names = np.array(["reward", *spec.constraint_names])
    learned = names[spec.learned_signals].tolist()
    yield f"learned from reports: {', '.join(learned)}" if learned else "reward and costs are known"
    if spec.learned_signals[1:].any():
        yield "some policy has the satisfiable cost: it cannot be checked, as costs are learned"
    elif definition.learner.always_satisfiable:
        yield "some policy has the satisfiable cost: certain, whatever the kernel"
    else:
        yield f"some policy has the satisfiable cost: other kernels are drawn again, up to {options.max_kernel_draws} times"
    starts = len(definition.first_states)
    yield f"episodes begin in {'one state' if starts == 1 else f'{starts} states, at random'}"
    if definition.max_open_episodes > 1:
        yield f"{definition.max_open_episodes} episodes may be open at once: the bound on the violation is proven for one"


def _warnings(scenario: Scenario, definition: Definition) -> Iterator[str]:
    spec, ended = definition.spec, _ended_states(definition.spec)
    yield from definition_warnings(definition)
    others = spec.available_actions & ~ended[:, None]
    if ended.any() and others.any() and not spec.learned_signals[0]:
        least = float(spec.signals[0][:, others].min())
        if least > 0:
            yield (
                f"every step earns {least:g} or more, and an ended episode nothing: ending early is unattractive; shift the "
                "rewards so that the least is 0"
            )
    low = definition.message.environment.get("reward_range", "0").partition(" ")[0]
    if ended.any() and low.startswith("-"):
        yield (
            f"rewards begin at {low}, and an ended episode has the least reward for the steps that are left: ending early is "
            "unattractive; let reward_range begin at 0, or shift the rewards"
        )
    if len(definition.first_states) > 1 and definition.message.seed == 0:
        yield "episodes begin at random and no seed is given: set agent.seed, and seed the environment, to repeat a run"
    yield from _horizon_warnings(scenario, spec, ended)


def _ended_states(spec: CmdpSpec) -> Mask:
    """[S]: states that lead to themselves alone and have no reward and no cost."""
    elsewhere = (spec.dirichlet_prior > 0) & (_targets(spec) != np.arange(spec.num_states)[:, None, None])
    return np.asarray((spec.signals == 0).all(axis=(0, 1, 3)) & ~elsewhere.any(axis=(0, 2, 3)))


def _horizon_warnings(scenario: Scenario, spec: CmdpSpec, ended: Mask) -> Iterator[str]:
    """Follow a player who chooses among the available actions at random, on the true kernel or the prior's mean."""
    given = spec.dirichlet_prior if scenario.transitions is None else scenario.transitions_for(0)
    if given[0].size * spec.horizon > MOST_WORK:
        return
    chances = (spec.available_actions / spec.available_actions.sum(axis=1, keepdims=True))[:, :, None]
    moves, targets = chances * given / np.maximum(given.sum(axis=-1, keepdims=True), MIN_PRIOR), _targets(spec)
    place, seen, last_new = spec.initial_distribution, spec.initial_distribution > 0, 0
    for step in range(spec.horizon):
        if ended.any() and place[ended].sum() >= ENOUGH and spec.horizon > ROOM * max(step, 1):
            yield f"episodes of a random player end within {step} steps: a horizon of {spec.horizon} is longer than needed"
            return
        weights = place[:, None, None] * moves[step % len(moves)]
        place = np.bincount(targets[step % len(targets)].ravel(), weights.ravel(), spec.num_states).astype(np.float64)
        if (place > 0)[~seen].any():
            seen, last_new = seen | (place > 0), step + 1
    if not ended.any() and spec.horizon > REVISITS * max(last_new, 1):
        yield (
            f"a random player can reach every state by step {last_new}: with a horizon of {spec.horizon} plans change "
            "seldom and the pessimism is large; consider shorter episodes"
        )


def _targets(spec: CmdpSpec) -> NDArray[np.int64]:
    """[1|H, S, A, W]: the next state of each entry of the prior."""
    shape = (max(len(spec.next_states), 1), *spec.dirichlet_prior.shape[1:])
    return np.broadcast_to(spec.next_states if spec.lists_next_states else np.arange(spec.num_states), shape)
