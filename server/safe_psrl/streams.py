"""One random stream for each (seed, episode, purpose), so that no generator state is ever saved.

The stream is numpy's SFC64 started from words mixed out of the three numbers. It must be restarted every few microseconds
inside compiled loops, where numpy's seeding cannot be called; so the four words of the generator's state, whose address
numpy publishes, are written in place. `open_stream` proves on every use that they are where we think they are.
"""

import ctypes
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.compiled import compiled

MAX_SEED: Final = 2**63 - 1
POSTERIOR: Final = 0  # what a stream is for
ENVIRONMENT: Final = 1
SCENARIO: Final = 2
ACTIONS: Final = 3
WARM_UP_DRAWS: Final = 12  # as numpy's own SFC64 does after seeding


class Stream(NamedTuple):
    """A generator and the words of its state, [4]. Not to be shared between threads."""

    generator: np.random.Generator
    words: NDArray[np.uint64]


def open_stream() -> Stream:
    """A stream that `restart` will place."""
    bits = np.random.SFC64(0)
    address = bits.ctypes.state_address
    words = np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(address))
    if not np.array_equal(words, bits.state["state"]["state"]):
        raise RuntimeError("this numpy lays out the state of SFC64 differently; use a version from constraints.txt")
    return Stream(np.random.Generator(bits), words)


def stream_of(seed: int, episode: int, purpose: int) -> np.random.Generator:
    """The generator of (seed, episode, purpose), for code that is not compiled."""
    generator, words = open_stream()
    restart(generator, words, seed, episode, purpose)
    return generator


@compiled
def mixed(word: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64-bit words that leaves no pattern of its argument."""
    z = word + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def restart(generator: np.random.Generator, words: NDArray[np.uint64], seed: int, episode: int, purpose: int) -> None:
    """Place the stream at the beginning of (seed, episode, purpose)."""
    word = mixed(np.uint64(seed))
    words[0] = word
    word = mixed(word ^ np.uint64(episode))
    words[1] = word
    words[2] = mixed(word ^ np.uint64(purpose))
    words[3] = np.uint64(1)
    for _ in range(WARM_UP_DRAWS):
        generator.random()
