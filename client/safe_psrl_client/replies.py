"""An agent's policy and posterior, as plain lists and as the protocol's messages."""

import sys
import zlib
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from safe_psrl_client.documents import nested_lists
from safe_psrl_proto.v1 import events_pb2, model_pb2

TYPECODES = {"<i8": "q", "<f8": "d"}


@dataclass(frozen=True)
class AgentPolicy:
    """The policy of one episode. `policy` is the protocol's message, `actions` the same as lists.

    `advisory`: the agent is in shadow, and another controller acts.
    """

    episode: int
    policy: model_pb2.Policy
    advisory: bool = False

    @cached_property
    def actions(self) -> list[list[int]]:
        """`[horizon][num_states]`: what to play at each step in each state."""
        rows: list[list[int]] = nested_lists((self.policy.horizon, self.policy.num_states), list(self.policy.actions))
        return rows


@dataclass(frozen=True)
class AgentPosterior:
    """What was observed in `version` events. `transition_counts` is the protocol's message, `counts` the same as lists."""

    transition_counts: events_pb2.PackedArray
    version: int

    @cached_property
    def counts(self) -> Any:
        """`[steps][num_states][num_actions][width]`: how often each next state was observed. `numpy.array` accepts it.

        There is one step if the problem is stationary, else one for each of the horizon. The width is num_states, or that of
        the specification's `next_states`.
        """
        return nested_lists(list(self.transition_counts.shape), _numbers(self.transition_counts).tolist())


def _numbers(packed: events_pb2.PackedArray) -> "array[int] | array[float]":
    numbers: array[int] | array[float] = array(TYPECODES[packed.dtype], zlib.decompress(packed.data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
