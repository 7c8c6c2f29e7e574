"""Rayleigh fading as ns-3's `TraceFadingLossModel` reads it: a line a resource block, a gain in dB each millisecond.

Paths and their delays are those of the Extended Pedestrian A model (3GPP TS 36.104, annex B.2), each a sum of waves after
Clarke and Jakes. The waves' frequencies are multiples of 1 over the trace's length, so that it can be repeated without a jump.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

PATH_POWERS: Final = (0.0, -1.0, -2.0, -3.0, -8.0, -17.2, -20.8)  # dB
PATH_DELAYS: Final = (0, 30, 70, 90, 110, 190, 410)  # nanoseconds
WAVES: Final = 24  # a path
CARRIER: Final = 2.12e9  # Hz, downlink of ns-3's default band
LIGHT: Final = 3e8  # metres a second
BLOCK_WIDTH: Final = 180e3  # Hz
DEEPEST: Final = 1e-6  # a gain that is as good as none


def fading_trace(generator: np.random.Generator, blocks: int, milliseconds: int, speed: float) -> NDArray[np.float64]:
    """[blocks, milliseconds], dB, 0 in the mean of power; `speed` in metres a second."""
    times = np.arange(milliseconds) / 1000
    frequencies = (np.arange(blocks) - blocks / 2) * BLOCK_WIDTH
    powers = 10 ** (np.array(PATH_POWERS) / 10)
    gain = np.zeros((blocks, milliseconds), np.complex128)
    for power, delay in zip(powers / powers.sum(), PATH_DELAYS, strict=True):
        doppler = speed * CARRIER / LIGHT * np.cos(generator.uniform(0, 2 * np.pi, WAVES))
        cycles = np.round(doppler * milliseconds / 1000)
        phases = generator.uniform(0, 2 * np.pi, WAVES)
        waves = np.exp(1j * (2 * np.pi * np.outer(cycles / milliseconds * 1000, times) + phases[:, None]))
        turned = np.exp(-2j * np.pi * frequencies * delay * 1e-9)
        gain += np.sqrt(power / WAVES) * np.outer(turned, waves.sum(axis=0))
    decibels: NDArray[np.float64] = 10 * np.log10(np.maximum(np.abs(gain) ** 2, DEEPEST))
    return decibels


def write_trace(trace: NDArray[np.float64], path: Path) -> None:
    np.savetxt(path, trace, fmt="%.3f")
