"""One random stream for each (seed, episode, purpose), restarted at will."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl.streams import ENVIRONMENT, MAX_SEED, POSTERIOR, SCENARIO, mixed, open_stream, restart, stream_of

SEEDS = (0, 1, 2, 2**31, 2**62, MAX_SEED - 1, MAX_SEED)
EPISODES = (0, 1, 2, 3, 400_000, 2**40)
PURPOSES = (POSTERIOR, ENVIRONMENT, SCENARIO)
KEY = st.tuples(st.integers(0, MAX_SEED), st.integers(0, 2**50), st.sampled_from(PURPOSES))


def test_no_two_streams_begin_alike() -> None:
    """Neighbouring and extreme seeds, episodes and purposes all give different draws."""
    firsts = [tuple(stream_of(*key).random(2)) for key in itertools.product(SEEDS, EPISODES, PURPOSES)]
    assert len(set(firsts)) == len(SEEDS) * len(EPISODES) * len(PURPOSES)


@given(KEY, KEY)
def test_streams_are_equal_exactly_where_their_keys_are(one: tuple, other: tuple) -> None:
    """A stream is a function of its key."""
    assert stream_of(*one).random(4).tolist() == stream_of(*one).random(4).tolist()
    assert (stream_of(*one).random(4).tolist() == stream_of(*other).random(4).tolist()) == (one == other)


@given(KEY, KEY, st.integers(0, 20))
def test_restart_forgets_all_use(key: tuple, before: tuple, used: int) -> None:
    """A generator that was used for something else, gamma draws included, is as new after a restart."""
    generator, words = open_stream()
    restart(generator, words, *before)
    generator.standard_gamma(0.1, used)
    restart(generator, words, *key)
    assert generator.random(5).tolist() == stream_of(*key).random(5).tolist()


def test_opened_streams_are_independent_of_each_other() -> None:
    """Restarting one stream leaves another alone."""
    one, other = open_stream(), open_stream()
    restart(*one, 1, 1, POSTERIOR)
    restart(*other, 2, 2, ENVIRONMENT)
    assert one.generator.random(3).tolist() == stream_of(1, 1, POSTERIOR).random(3).tolist()


@pytest.mark.parametrize("axis", ["draw", "seed", "episode"])
def test_uniform_along_each_axis(axis: str) -> None:
    """20,000 numbers of one stream, or the first numbers of as many neighbours, fill 50 bins evenly (chi-squared)."""
    if axis == "draw":
        numbers = stream_of(0, 1, POSTERIOR).random(20_000)
    elif axis == "seed":
        numbers = np.array([stream_of(i, 1, POSTERIOR).random() for i in range(20_000)])
    else:
        numbers = np.array([stream_of(0, i, POSTERIOR).random() for i in range(20_000)])
    expected = 20_000 / 50
    statistic = ((np.histogram(numbers, 50, (0, 1))[0] - expected) ** 2 / expected).sum()
    assert 23 < statistic < 86  # 49 degrees of freedom: outside with probability 0.0015
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_mixing_is_splitmix() -> None:
    """The published test vector of SplitMix64 started at 0: its first two outputs."""
    assert int(mixed(np.uint64(0))) == 0xE220A8397B1DCDAF
    assert int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0x6E789E6AA1B965F4
