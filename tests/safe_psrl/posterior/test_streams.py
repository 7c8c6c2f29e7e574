"""One random stream for each (seed, episode, purpose), that nothing needs to save."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from safe_psrl.posterior.draws import log_gamma_draw
from safe_psrl.posterior.streams import (
    ENVIRONMENT,
    MAX_SEED,
    POSTERIOR,
    SCENARIO,
    generator_of,
    mixed,
    next_word,
    normal,
    stream_of,
    uniform,
)

SEEDS = (0, 1, 2, 2**31, 2**62, MAX_SEED - 1, MAX_SEED)
EPISODES = (0, 1, 2, 3, 400_000, 2**40)
PURPOSES = (POSTERIOR, ENVIRONMENT, SCENARIO)
KEY = st.tuples(st.integers(0, MAX_SEED), st.integers(0, 2**50), st.sampled_from(PURPOSES))


def test_no_two_streams_begin_alike() -> None:
    """Neighbouring and extreme seeds, episodes and purposes all give different draws."""
    firsts = [tuple(generator_of(*key).random(2)) for key in itertools.product(SEEDS, EPISODES, PURPOSES)]
    assert len(set(firsts)) == len(SEEDS) * len(EPISODES) * len(PURPOSES)


@given(KEY, KEY)
def test_streams_are_equal_exactly_where_their_keys_are(one: tuple, other: tuple) -> None:
    """A stream is a function of its key."""
    assert generator_of(*one).random(4).tolist() == generator_of(*one).random(4).tolist()
    assert (generator_of(*one).random(4).tolist() == generator_of(*other).random(4).tolist()) == (one == other)


def test_draws_from_one_stream_leave_another_alone() -> None:
    """A stream is its words and nothing else."""
    one, other = stream_of(1, 1, POSTERIOR), stream_of(1, 1, POSTERIOR)
    for _ in range(5):
        uniform(other)
    assert [uniform(one) for _ in range(3)] == generator_of(1, 1, POSTERIOR).random(3).tolist()


@pytest.mark.parametrize("axis", ["draw", "seed", "episode"])
def test_uniform_along_each_axis(axis: str) -> None:
    """20,000 numbers of one stream, or the first numbers of as many neighbours, fill 50 bins evenly (chi-squared)."""
    if axis == "draw":
        numbers = generator_of(0, 1, POSTERIOR).random(20_000)
    elif axis == "seed":
        numbers = np.array([generator_of(i, 1, POSTERIOR).random() for i in range(20_000)])
    else:
        numbers = np.array([generator_of(0, i, POSTERIOR).random() for i in range(20_000)])
    expected = 20_000 / 50
    statistic = ((np.histogram(numbers, 50, (0, 1))[0] - expected) ** 2 / expected).sum()
    assert 23 < statistic < 86  # 49 degrees of freedom: outside with probability 0.0015
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_mixing_is_splitmix() -> None:
    """The published test vector of SplitMix64 started at 0: its first two outputs."""
    assert int(mixed(np.uint64(0))) == 0xE220A8397B1DCDAF
    assert int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0x6E789E6AA1B965F4


GOLDEN_WORDS = [1458610594901049844, 15937427463184525643]
GOLDEN_NUMBERS = [1.6859561221566897, 0.9773286165295023, -39.0507697555039, 1.5070064226165791]
WORDS = st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).map(lambda words: np.array(words, np.uint64))


@given(WORDS)
def test_words_advance_as_numpys_do(words: np.ndarray) -> None:
    """Whatever the words are: the same 64 bits, the same uniform numbers, and the same words afterwards."""
    bits = np.random.SFC64(0)
    bits.state = {"bit_generator": "SFC64", "state": {"state": words.copy()}, "has_uint32": 0, "uinteger": 0}
    assert [int(next_word(words)) for _ in range(30)] == bits.random_raw(30).tolist()
    assert [uniform(words) for _ in range(30)] == np.random.Generator(bits).random(30).tolist()
    state: Any = bits.state
    assert words.tolist() == state["state"]["state"].tolist()


def test_normal_numbers_are_normal() -> None:
    """Kolmogorov and Smirnov's test at a fixed seed; neighbours are uncorrelated."""
    stream = stream_of(3, 1, POSTERIOR)
    numbers = np.array([normal(stream) for _ in range(50_000)])
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_golden_numbers() -> None:
    """The streams' first numbers, whatever the versions of numpy and numba."""
    stream = stream_of(1, 2, POSTERIOR)
    assert [int(next_word(stream)) for _ in range(2)] == GOLDEN_WORDS
    assert [normal(stream), uniform(stream), log_gamma_draw(stream, 0.1), log_gamma_draw(stream, 7.5)] == pytest.approx(
        GOLDEN_NUMBERS, rel=1e-12
    )
