"""A small problem with every kind of limit, and agents for it."""

from typing import Any

import numpy as np

from safe_psrl import CmdpSpec, Constraint
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message

HORIZON = 3


def make_problem(*, learned: bool = False, horizon: int = HORIZON, listed: bool = False) -> CmdpSpec:
    """Four states, three actions, two constraints. Episodes begin in 0 or 1; action 2 is not available in state 0; action 1
    leads from state 1 to 0 or 2 only, and where next states are `listed`, no pair leads to state 3."""
    available = np.ones((4, 3), np.bool_)
    available[0, 2] = False
    support = np.ones((4, 3, 4), np.bool_)
    support[1, 1, [1, 3]] = False
    next_states = np.tile([0, 1, 2], (4, 3, 1))
    next_states[1, 1] = [0, 2, -1]
    return CmdpSpec(
        num_states=4,
        num_actions=3,
        horizon=horizon,
        initial_distribution=[0.5, 0.5, 0.0, 0.0],
        reward=np.linspace(0, 1, 12).reshape(4, 3),
        reward_learned=learned,
        constraints=[
            Constraint("energy", np.tile([0.0, 0.5, 1.0], (4, 1)), 0.5 * horizon, 0.1, learned=learned),
            Constraint("wear", np.tile([0.25, 0.0, 0.75], (4, 1)), 0.8 * horizon, 0.3 * horizon, learned=learned),
        ],
        available_actions=available,
        support=None if listed else support,
        next_states=next_states if listed else None,
    )


def make_spec(
    *, learned: bool = False, horizon: int = HORIZON, listed: bool = False, fallback: bool = False, **fields: Any
) -> model_pb2.AgentSpec:
    """An agent for `make_problem`; `fallback` plays action 1 everywhere."""
    cmdp = cmdp_to_message(make_problem(learned=learned, horizon=horizon, listed=listed))
    spec = model_pb2.AgentSpec(cmdp=cmdp, **fields)
    if fallback:
        policy = model_pb2.Policy(horizon=horizon, num_states=4, actions=[1] * (4 * horizon))
        spec.fallback_policy.CopyFrom(policy)
    return spec


def transition(state: int = 0, action: int = 1, next_state: int = 0, **fields: Any) -> control_pb2.Transition:
    """By default one that every agent for `make_problem` accepts at any step that begins in state 0."""
    return control_pb2.Transition(state=state, action=action, next_state=next_state, **fields)


def set_fields(message: Any, changes: dict[str, Any]) -> None:
    """Set each field by its path, such as "constraints.0.name". None clears a field, a list replaces a repeated one, and a
    function is called with the field's message."""
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = message
        for part in parents:
            place = place[int(part)] if part.isdecimal() else getattr(place, part)
        if callable(value):
            value(getattr(place, last))
        elif last.isdecimal():
            place[int(last)] = value
        elif value is None:
            place.ClearField(last)
        elif isinstance(value, list):
            getattr(place, last)[:] = value
        else:
            setattr(place, last, value)
