"""One random stream for each (seed, episode, purpose), so that no generator state is ever saved.

A stream is the four words of an SFC64 generator, started from words mixed out of the three numbers. Compiled code advances
them in place. The words and the uniform numbers are those of numpy's SFC64; everything drawn from them is defined here and in
`draws`, so it depends on no version of numpy or numba.
"""

import math
from typing import Final

import numpy as np

from safe_psrl.arrays import Words
from safe_psrl.compiled import compiled

MAX_SEED: Final = 2**63 - 1
POSTERIOR: Final = 0  # what a stream is for
ENVIRONMENT: Final = 1
SCENARIO: Final = 2
ACTIONS: Final = 3
WARM_UP_DRAWS: Final = 12  # numpy's SFC64 discards as many after seeding
UNIT: Final = 2.0**-53


@compiled
def mixed(word: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64-bit words that leaves no pattern of its argument."""
    z = word + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def stream_of(seed: int, episode: int, purpose: int) -> Words:
    """The stream of (seed, episode, purpose), at its beginning. Draws advance it in place."""
    words = np.empty(4, np.uint64)
    words[0] = mixed(np.uint64(seed))
    words[1] = mixed(words[0] ^ np.uint64(episode))
    words[2] = mixed(words[1] ^ np.uint64(purpose))
    words[3] = np.uint64(1)
    for _ in range(WARM_UP_DRAWS):
        next_word(words)
    return words


@compiled
def next_word(words: Words) -> np.uint64:
    """The next 64 random bits."""
    drawn: np.uint64 = words[0] + words[1] + words[3]
    words[0] = words[1] ^ (words[1] >> np.uint64(11))
    words[1] = words[2] + (words[2] << np.uint64(3))
    words[2] = ((words[2] << np.uint64(24)) | (words[2] >> np.uint64(40))) + drawn
    words[3] += np.uint64(1)
    return drawn


@compiled
def uniform(words: Words) -> float:
    """The next number in [0, 1)."""
    return (next_word(words) >> np.uint64(11)) * UNIT


@compiled
def normal(words: Words) -> float:
    """The next standard normal number, by the polar method. Its second number is dropped: the words are the whole state."""
    while True:
        x, y = 2.0 * uniform(words) - 1.0, 2.0 * uniform(words) - 1.0
        square = x * x + y * y
        if 0.0 < square < 1.0:
            return x * math.sqrt(-2.0 * math.log(square) / square)


def generator_of(seed: int, episode: int, purpose: int) -> np.random.Generator:
    """The same stream as numpy's generator, for code that is not compiled."""
    bits = np.random.SFC64(0)
    words = stream_of(seed, episode, purpose)
    bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
    return np.random.Generator(bits)
