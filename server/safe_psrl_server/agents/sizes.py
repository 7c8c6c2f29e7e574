"""What a problem takes of the server, from its sizes alone: checked before anything is built."""

from collections.abc import Mapping
from typing import Final

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import InvalidArgumentError

MAX_CONSTRAINTS: Final = 100
MAX_NAME: Final = 128  # characters of a constraint's name
MAX_NOTES: Final = 100
MAX_NOTE: Final = 500  # characters
EPOCH_STEPS: Final = 100  # the horizon whose plan takes about as long as one of a continuing task


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
    """The notes of a definition on its environment."""
    if len(environment) > MAX_NOTES:
        raise InvalidArgumentError("spec.environment", f"must have at most {MAX_NOTES} entries, got {len(environment)}")
    for name, text in environment.items():
        check_text("spec.environment", name, MAX_NAME)
        check_text(f"spec.environment.{name}", text, MAX_NOTE)


def check_text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidArgumentError(field, f"must be at most {most} characters, got {len(text)}")


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
