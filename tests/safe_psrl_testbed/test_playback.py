"""The players' buffers: quantised as agents see them, drained at the paper's rate, the same for every policy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl_testbed.kernels import DEPARTURE
from safe_psrl_testbed.media_players import LARGEST_STATE, PlaybackBuffers, quantised


@pytest.mark.parametrize(
    ("level", "state"), [(0.0, 0), (0.99, 0), (1.0, 1), (1.5, 1), (8.999, 8), (9.0, 9), (9.7, 9), (100.0, 9)]
)
def test_a_state_is_the_number_of_whole_media_units(level: float, state: int) -> None:
    assert quantised(level) == state


@given(st.integers(0, 2**31), st.lists(st.lists(st.floats(0, 4), min_size=3, max_size=3), max_size=30))
def test_an_empty_buffer_plays_nothing_and_a_full_one_drops_the_excess(seed: int, epochs: list[list[float]]) -> None:
    buffers = PlaybackBuffers(3, seed)
    for received in epochs:
        before = buffers.levels
        states = buffers.advance(received)
        assert (buffers.levels >= 0).all()
        assert (buffers.levels <= LARGEST_STATE).all()
        assert (states == quantised(buffers.levels)).all()
        lost = before + received - buffers.levels
        whole = before + np.array(received) >= 1
        kept = before + received <= LARGEST_STATE
        assert np.isclose(lost[kept], 0).sum() + (np.isclose(lost[kept], 1) & whole[kept]).sum() == kept.sum()


def test_playback_has_the_papers_rate() -> None:
    buffers = PlaybackBuffers(20_000, seed=3)
    buffers.levels = np.full(20_000, 5.0)
    assert (buffers.advance(np.zeros(20_000)) == 4).mean() == pytest.approx(DEPARTURE, abs=0.01)


def test_a_clip_begins_empty() -> None:
    buffers = PlaybackBuffers(2, seed=1)
    buffers.advance([3.5, 0.4])
    assert buffers.empty().tolist() == [0, 0]
    assert buffers.levels.tolist() == [0.0, 0.0]


def test_playback_events_do_not_depend_on_arrivals() -> None:
    rich, poor = PlaybackBuffers(1, seed=9), PlaybackBuffers(1, seed=9)
    for epoch in range(50):
        rich.levels, poor.levels = np.array([5.0]), np.array([5.0 if epoch % 2 else 0.0])
        played = rich.advance([0.0])[0] == 4
        poor.advance([0.0])
        if epoch % 2:
            assert (poor.states[0] == 4) == played
