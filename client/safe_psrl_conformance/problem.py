"""The problem that the checks play: small, and with every kind of limit.

Four states, three actions, three steps, two constraints. Episodes begin in 0 or 1; action 2 is not available in state 0;
action 1 leads from state 1 to 0 or 2 only.
"""

from typing import Any, Final

from safe_psrl_proto.v1 import control_pb2, model_pb2

STATES: Final = 4
ACTIONS: Final = 3
HORIZON: Final = 3
FALLBACK_ACTION: Final = 1


def agent_spec(*, fallback: bool = False, **fields: Any) -> model_pb2.AgentSpec:
    """An agent for the problem; its `fallback` plays one action everywhere."""
    pairs = [STATES, ACTIONS]
    available = [1.0] * (STATES * ACTIONS)
    available[2] = 0.0
    support = [1.0] * (STATES * ACTIONS * STATES)
    for next_state in (1, 3):
        support[(1 * ACTIONS + 1) * STATES + next_state] = 0.0
    cmdp = model_pb2.CmdpSpec(
        num_states=STATES,
        num_actions=ACTIONS,
        horizon=HORIZON,
        initial_distribution=model_pb2.Table(shape=[STATES], values=[0.5, 0.5, 0, 0]),
        reward=model_pb2.Table(shape=pairs, values=[i / 11 for i in range(12)]),
        constraints=[
            model_pb2.Constraint(
                name="energy",
                cost=model_pb2.Table(shape=pairs, values=[0, 0.5, 1] * STATES),
                cost_budget=1.5,
                satisfiable_cost=0.1,
            ),
            model_pb2.Constraint(
                name="wear",
                cost=model_pb2.Table(shape=pairs, values=[0.25, 0, 0.75] * STATES),
                cost_budget=2.4,
                satisfiable_cost=0.9,
            ),
        ],
        available_actions=model_pb2.Table(shape=pairs, values=available),
        support=model_pb2.Table(shape=[*pairs, STATES], values=support),
    )
    spec = model_pb2.AgentSpec(cmdp=cmdp, **{"seed": 7, **fields})
    if fallback:
        actions = [FALLBACK_ACTION] * (HORIZON * STATES)
        spec.fallback_policy.CopyFrom(model_pb2.Policy(horizon=HORIZON, num_states=STATES, actions=actions))
    return spec


def seen(state: int = 0, action: int = 0, next_state: int = 0, **fields: Any) -> control_pb2.Transition:
    """A step; by default one that stays in state 0, so that it could be taken again if it were reported twice."""
    return control_pb2.Transition(state=state, action=action, next_state=next_state, **fields)
