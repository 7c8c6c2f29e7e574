"""Long fields written as they are on the wire: the same messages as number by number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server.conversion import policy_from_message, write_policy
from safe_psrl_server.wire import LONG


def plainly(policy: NDArray[np.int32], probabilities: NDArray[np.float64] | None = None) -> model_pb2.Policy:
    """Number by number."""
    rows = [] if probabilities is None else probabilities.ravel().tolist()
    horizon, num_states = policy.shape
    return model_pb2.Policy(horizon=horizon, num_states=num_states, actions=policy.ravel().tolist(), probabilities=rows)


@pytest.mark.parametrize("actions", [1, 2, 4, 127, 128, 129, 300, 100_000])
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (1, LONG - 1), (2, LONG // 2), (50, 500)])
def test_a_policy_is_written_as_it_would_be_number_by_number(shape: tuple[int, int], actions: int) -> None:
    """Below and above the number of entries, and of actions, from which on it is done in another way."""
    policy = np.random.default_rng(1).integers(0, actions, shape, np.int32)
    if policy.size:
        policy.flat[-1] = actions - 1
    written = model_pb2.Policy()
    write_policy(policy, None, written)
    assert written == plainly(policy)
    assert written.SerializeToString() == plainly(policy).SerializeToString()
    assert policy_from_message(written).tolist() == policy.tolist()


@pytest.mark.parametrize("shape", [(0, 0, 3), (1, 1, 1), (20, 30, 5)])
def test_probabilities_are_written_to_the_last_bit(shape: tuple[int, int, int]) -> None:
    probabilities = np.random.default_rng(2).dirichlet(np.full(shape[2], 0.3), shape[:2])
    policy = np.zeros(shape[:2], np.int32)
    written = model_pb2.Policy()
    write_policy(policy, probabilities, written)
    assert written == plainly(policy, probabilities)


@pytest.mark.parametrize("lay_out", [np.asfortranarray, lambda table: table[::-1, ::2]])
def test_a_table_is_written_row_by_row_however_it_lies(lay_out: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    policy = lay_out(np.random.default_rng(3).integers(0, 9, (40, 50), np.int32))
    probabilities = lay_out(np.random.default_rng(3).random((40, 50, 9)))
    written = model_pb2.Policy()
    write_policy(policy, probabilities, written)
    assert written == plainly(policy, probabilities)


def test_numbers_below_zero_are_not_cut() -> None:
    policy = np.full((1, LONG), -1, np.int32)
    written = model_pb2.Policy()
    write_policy(policy, None, written)
    assert set(written.actions) == {-1}


def test_a_policy_inside_an_event_is_there() -> None:
    """The event knows that it has one."""
    event = events_pb2.Event()
    write_policy(np.ones((2, LONG), np.int32), None, event.episode_started.policy)
    assert event.WhichOneof("kind") == "episode_started"
    assert list(events_pb2.Event.FromString(event.SerializeToString()).episode_started.policy.actions) == [1] * 2 * LONG
