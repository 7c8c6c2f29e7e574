"""numpy's SFC64 in compiled code: the generator is an array of its four words, which compiled code advances by itself.

numba can draw from numpy's own generators. But handing one to compiled code takes longer than a whole plan of a small problem,
and each number is then a call that cannot be inlined. numba's distributions, which are numpy's, ask whatever they draw from
for `next_uint64` and `next_double`; here they are taught to ask the words. The numbers are numpy's to the bit.
"""

from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import intrinsic, overload
from numba.np.random import distributions, generator_core

from safe_psrl.arrays import Words
from safe_psrl.compiled import compiled

BITS: Final = types.CPointer(types.uint64)  # type: ignore[no-untyped-call]
UNIT: Final = 2.0**-53

next_uint64: Any = generator_core.next_uint64
next_double: Any = generator_core.next_double
gamma_draw: Any = distributions.random_standard_gamma


def _first_word(_: Any, words: Any) -> Any:
    def address(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return context.make_array(words)(context, builder, arguments[0]).data

    return BITS(words), address


# Where some words are: what the three above draw from. The array itself would do, but numba counts references for arrays handed
# to functions, and that takes as long as a draw. Whoever asks must hold the array until the last draw.
bits_of: Any = intrinsic(_first_word)


def _advanced(bits: Any) -> Any:
    drawn = bits[0] + bits[1] + bits[3]
    bits[0] = bits[1] ^ (bits[1] >> np.uint64(11))
    bits[1] = bits[2] + (bits[2] << np.uint64(3))
    bits[2] = ((bits[2] << np.uint64(24)) | (bits[2] >> np.uint64(40))) + drawn
    bits[3] += np.uint64(1)
    return drawn


def _unit(bits: Any) -> Any:
    return (next_uint64(bits) >> np.uint64(11)) * UNIT


# numba asks these, for each type that is drawn from, for the function to compile. `strict` would compare annotations.
overload(next_uint64, strict=False)(lambda bits: _advanced if bits == BITS else None)
overload(next_double, strict=False)(lambda bits: _unit if bits == BITS else None)


@compiled
def uniform(words: Words) -> float:
    """The next number in [0, 1)."""
    return float(next_double(bits_of(words)))
