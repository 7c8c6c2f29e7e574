"""Calls that share a message of a stream: how many there may be, and for how many they count."""

from typing import Any, Final

from safe_psrl_proto.v1 import control_pb2

MOST_CALLS: Final = 1024


def calls_in(request: Any) -> int:
    """What a message counts for: a batch for what it holds, anything else for one.

    A batch that is too long is refused, however long it is, so it counts as the longest one that is not: counting takes
    time, and a message has room for millions of empty calls.
    """
    if not isinstance(request, control_pb2.StepStreamRequest):
        return 1
    return min(max(len(request.batch.calls), 1), MOST_CALLS)
