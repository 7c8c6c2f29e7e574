"""Checks of a definition's parts. Each raises `InvalidArgumentError` that names the field.

The memory and time that a problem needs are checked from its sizes alone, before anything is built.
"""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.problem.options import LARGEST
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.messages import policy_from_message
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import InvalidArgumentError

MAX_CONSTRAINTS: Final = 100
MAX_NAME: Final = 128  # characters of a constraint's name
MAX_NOTES: Final = 100
MAX_NOTE: Final = 500  # characters
EPOCH_STEPS: Final = 100  # the horizon whose plan takes about as long as one of a continuing task
MAX_OPEN_EPISODES: Final = 1000
MAX_EPOCH_STEPS: Final = 10_000  # of two epochs every step is in memory and in snapshots
MAX_ROWS: Final = 2**53  # of a warm start
DIGEST: Final = re.compile("[0-9a-f]{64}")
LIVE: Final = "live"
SHADOW: Final = "shadow"
MODES: Final = (LIVE, SHADOW)


def check_size(cmdp: model_pb2.CmdpSpec, limits: Limits) -> None:
    """Checks sizes before anything is allocated: a message of a few bytes can request tables of any size."""
    if len(cmdp.constraints) > MAX_CONSTRAINTS:
        raise InvalidArgumentError("spec.constraints", f"must be at most {MAX_CONSTRAINTS}, got {len(cmdp.constraints)}")
    for i, constraint in enumerate(cmdp.constraints):
        check_text(f"spec.constraints[{i}].name", constraint.name, MAX_NAME)
    entries, most = table_entries(cmdp), limits.max_table_entries
    if entries > most:
        raise InvalidArgumentError("spec.num_states", f"needs tables of {entries} entries; the server allows {most}")
    steps = EPOCH_STEPS if cmdp.continuing else cmdp.horizon
    work = cmdp.num_states * cmdp.num_actions * _width(cmdp) * steps * (1 + len(cmdp.constraints))
    if work > limits.max_plan_work:
        allowed = f"the server allows {limits.max_plan_work} (limits.max_plan_work)"
        raise InvalidArgumentError("spec.horizon", f"makes a plan take {work} products; {allowed}")


def check_environment(environment: Mapping[str, str]) -> None:
    """Check the number and the lengths of a definition's notes about its environment."""
    if len(environment) > MAX_NOTES:
        raise InvalidArgumentError("spec.environment", f"must have at most {MAX_NOTES} entries, got {len(environment)}")
    for name, text in environment.items():
        check_text("spec.environment", name, MAX_NAME)
        check_text(f"spec.environment.{name}", text, MAX_NOTE)


def check_text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidArgumentError(field, f"must be at most {most} characters, got {len(text)}")


def check_mode(message: model_pb2.AgentSpec) -> None:
    if message.mode not in {"", *MODES}:
        raise InvalidArgumentError("spec.mode", f"must be one of {', '.join(MODES)}, got {message.mode[:60]!r}")


def check_epochs(message: model_pb2.AgentSpec) -> None:
    if not message.cmdp.continuing:
        if message.max_epoch_steps:
            raise InvalidArgumentError("spec.max_epoch_steps", "must be absent: the task is not continuing")
        return
    if not 1 <= message.max_epoch_steps <= MAX_EPOCH_STEPS:
        raise InvalidArgumentError(
            "spec.max_epoch_steps", f"must be from 1 to {MAX_EPOCH_STEPS}, got {message.max_epoch_steps}"
        )
    if message.max_open_episodes != 1:
        raise InvalidArgumentError(
            "spec.max_open_episodes", f"must be 1 in a continuing task, which has one course, got {message.max_open_episodes}"
        )


def check_guard(guard: model_pb2.Guard) -> None:
    limits = {field.name: value for field, value in guard.ListFields() if field.name != "on_drift"}
    for name, value in limits.items():
        if not 0 < value <= LARGEST:
            raise InvalidArgumentError(f"spec.guard.{name}", f"must be above 0 and at most {LARGEST:g}, got {value}")


def check_origin(given: model_pb2.WarmStart) -> None:
    check_text("spec.warm_start.source", given.source, MAX_NOTE)
    if not 1 <= given.rows <= MAX_ROWS:
        raise InvalidArgumentError("spec.warm_start.rows", f"must be from 1 to 2^53, got {given.rows}")
    if not 0 < given.weight <= LARGEST:
        raise InvalidArgumentError("spec.warm_start.weight", f"must be above 0 and at most {LARGEST:g}, got {given.weight}")
    if not DIGEST.fullmatch(given.digest):
        raise InvalidArgumentError("spec.warm_start.digest", "must be a SHA-256 of 64 hexadecimal digits in lower case")


def checked_policy(field: str, given: model_pb2.Policy, spec: CmdpSpec) -> Policy:
    """[H, S]. Raises `InvalidArgumentError` if it has another size, or plays what is not available."""
    size = spec.horizon or 1, spec.num_states  # the same at every step of a continuing task
    if (given.horizon, given.num_states) != size or len(given.actions) != size[0] * size[1]:
        raise InvalidArgumentError(field, f"must have {size[0]} x {size[1]} actions")
    policy = policy_from_message(given)
    known = (policy >= 0) & (policy < spec.num_actions)
    playable = known & spec.available_actions[np.arange(spec.num_states), np.where(known, policy, 0)]
    for place in np.flatnonzero(~playable)[:1].tolist():
        state, action = place % spec.num_states, policy.flat[place]
        raise InvalidArgumentError(f"{field}.actions[{place}]", f"{action} is not available in state {state}")
    return policy


def table_entries(cmdp: model_pb2.CmdpSpec) -> int:
    """Entries of the largest table, from the sizes alone."""
    steps = cmdp.horizon if cmdp.non_stationary else 1
    signals = [cmdp.reward, *(constraint.cost for constraint in cmdp.constraints)]
    signal_steps = cmdp.horizon if any(len(table.shape) > 2 for table in signals) else 1  # one of them stretches all
    per_pair = max(_width(cmdp) * steps, cmdp.horizon, len(signals) * signal_steps)
    return max(cmdp.num_states * cmdp.num_actions * per_pair, 0)


def _width(cmdp: model_pb2.CmdpSpec) -> int:
    """Next states that a pair can lead to."""
    return (cmdp.next_states.shape or [0])[-1] if cmdp.HasField("next_states") else cmdp.num_states
