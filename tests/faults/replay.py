"""The algorithm on its own, fed with what was acknowledged: it must decide what the service decided."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from safe_psrl import CmdpSpec, Constraint, SafePsrl, Transition
from tests.faults.fold import Expected


def replayed(agent: Expected) -> Iterator[str]:
    """What the service decided otherwise than a run that nothing ever interrupted."""
    learner = SafePsrl(problem_of(agent.spec.cmdp), seed=agent.spec.seed)
    memory, told = learner.initial_state(), _told(agent)
    for number, steps in agent.episodes().items():
        memory, plan = learner.start_episode(memory)
        if plan.episode != number:
            yield f"episode {number} comes where {plan.episode} should"
            return
        reply = agent.starts.get(number)
        if reply is not None and hasattr(reply, "dual_variables"):
            if list(reply.dual_variables) != plan.next_dual_variables.tolist():
                yield f"episode {number} began with another dual variable than without interruption"
            if list(reply.predicted_costs) != plan.predicted_costs.tolist():
                yield f"episode {number} was planned otherwise than without interruption"
        wrong = [(step, state) for step, state, action in told.get(number, ()) if plan.policy[step, state] != action]
        if wrong:
            yield f"episode {number}: other actions than without interruption at (step, state) {wrong[:3]}"
        for step, seen in enumerate(steps):
            memory = learner.observe(
                memory, Transition(step, seen.state, seen.action, seen.next_state, seen.reward, tuple(seen.costs))
            )


def problem_of(message: Any) -> CmdpSpec:
    return CmdpSpec(
        num_states=message.num_states,
        num_actions=message.num_actions,
        horizon=message.horizon,
        reward=_table(message.reward),
        reward_learned=message.reward_learned,
        constraints=[
            Constraint(part.name, _table(part.cost), part.cost_budget, part.satisfiable_cost, learned=part.learned)
            for part in message.constraints
        ],
    )


def _table(message: Any) -> Any:
    return np.array(message.values).reshape(tuple(message.shape))


def _told(agent: Expected) -> dict[int, list[tuple[int, int, int]]]:
    told: dict[int, list[tuple[int, int, int]]] = {}
    for (episode, step, state), action in agent.actions.items():
        told.setdefault(episode, []).append((step, state, action))
    return told
