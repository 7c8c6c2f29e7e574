"""The warm start of a definition: what an agent knows before its first episode."""

import re
from typing import Final

from safe_psrl.errors import SpecError
from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.problem.options import LARGEST
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.messages import array_of
from safe_psrl_server.agents.sizes import MAX_NOTE, check_text
from safe_psrl_server.errors import InvalidArgumentError

MAX_ROWS: Final = 2**53
DIGEST: Final = re.compile("[0-9a-f]{64}")


def initial_state(message: model_pb2.AgentSpec, learner: SafePsrl) -> AgentState:
    """The state that the agent begins with. Raises `InvalidArgumentError` that names the field."""
    if not message.HasField("warm_start"):
        return learner.initial_state()
    given = message.warm_start
    _check_origin(given)
    try:
        return learner.initial_state(
            InitialCounts(
                array_of("transition_counts", given.transition_counts),
                array_of("signal_sums", given.signal_sums) if given.HasField("signal_sums") else None,
                array_of("visits", given.visits) if given.HasField("visits") else None,
            )
        )
    except SpecError as error:
        raise InvalidArgumentError(f"spec.warm_start.{error.field}", f"{error.requirement} (got {error.value!r:.60})") from None


def _check_origin(given: model_pb2.WarmStart) -> None:
    check_text("spec.warm_start.source", given.source, MAX_NOTE)
    if not 1 <= given.rows <= MAX_ROWS:
        raise InvalidArgumentError("spec.warm_start.rows", f"must be from 1 to 2^53, got {given.rows}")
    if not 0 < given.weight <= LARGEST:
        raise InvalidArgumentError("spec.warm_start.weight", f"must be above 0 and at most {LARGEST:g}, got {given.weight}")
    if not DIGEST.fullmatch(given.digest):
        raise InvalidArgumentError("spec.warm_start.digest", "must be a SHA-256 of 64 hexadecimal digits in lower case")
