"""One random stream for each (seed, episode, purpose), so that no generator state is ever saved.

The stream is numpy's SFC64 started from words mixed out of the three numbers. One is begun every few microseconds inside
compiled loops, where numpy's seeding cannot be called: there, a stream is the words themselves (`sfc64`).
"""

from typing import Final

import numpy as np

from safe_psrl.arrays import Words
from safe_psrl.compiled import compiled
from safe_psrl.posterior.sfc64 import uniform

MAX_SEED: Final = 2**63 - 1
POSTERIOR: Final = 0  # what a stream is for
ENVIRONMENT: Final = 1
SCENARIO: Final = 2
ACTIONS: Final = 3
WARM_UP_DRAWS: Final = 12  # as numpy's own SFC64 does after seeding


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
        uniform(words)
    return words


def generator_of(seed: int, episode: int, purpose: int) -> np.random.Generator:
    """The same stream as numpy's generator, for code that is not compiled."""
    bits = np.random.SFC64(0)
    words = stream_of(seed, episode, purpose)
    bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
    return np.random.Generator(bits)
