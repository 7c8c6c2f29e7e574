"""The compiled SFC64: the numbers that numpy's own generator draws from the same words, to the bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from safe_psrl.arrays import Words
from safe_psrl.posterior.sfc64 import bits_of, gamma_draw, next_uint64, uniform

WORDS = st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).map(lambda words: np.array(words, np.uint64))
SHAPES = (1e-300, 1e-3, 0.1, 0.3, 0.999, 1.0, 1.1, 2.0, 17.5, 1e6, 2.0**53)


def numpy_of(words: Words) -> np.random.Generator:
    bits = np.random.SFC64()
    bits.state = {"bit_generator": "SFC64", "state": {"state": words.copy()}, "has_uint32": 0, "uinteger": 0}
    return np.random.Generator(bits)


def words_of(generator: np.random.Generator) -> list[int]:
    state: Any = generator.bit_generator.state
    return [int(word) for word in state["state"]["state"]]


@njit  # not from a cache, which would not notice a change of what is tested
def raw(words: Words, drawn: Words) -> None:
    for i in range(drawn.size):
        drawn[i] = next_uint64(bits_of(words))


@njit
def gammas(words: Words, shape: float, drawn: np.ndarray) -> None:
    for i in range(drawn.size):
        drawn[i] = gamma_draw(bits_of(words), shape)


@given(WORDS)
def test_words_advance_as_numpys(words: Words) -> None:
    """Whatever the words are, extreme ones included: the same 64 bits, and the same words afterwards."""
    theirs, drawn = numpy_of(words), np.empty(30, np.uint64)
    raw(words, drawn)
    assert drawn.tolist() == theirs.bit_generator.random_raw(30).tolist()
    assert words.tolist() == words_of(theirs)


@given(WORDS)
def test_uniform_numbers_are_numpys(words: Words) -> None:
    """All 53 bits of them."""
    theirs = numpy_of(words)
    assert [uniform(words) for _ in range(30)] == theirs.random(30).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_draws_are_numpys(shape: float) -> None:
    """Below, at and above 1, where the algorithm differs; and as many numbers are taken from the stream."""
    words, drawn = np.array([1, 2, 3, 1], np.uint64), np.empty(2_000)
    theirs = numpy_of(words)
    gammas(words, shape, drawn)
    assert drawn.tolist() == pytest.approx(theirs.standard_gamma(shape, 2_000).tolist(), rel=1e-13, abs=0)
    assert words.tolist() == words_of(theirs)
