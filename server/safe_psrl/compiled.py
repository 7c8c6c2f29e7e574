"""How kernels are compiled: one place for numba's flags.

Compiled code releases the interpreter's lock and is cached beside the source. numba has no types that a checker could read, so
the decorators keep the plain function's.

Kernels copy tables by `copy_table` or swap them, and do not assign arrays to slices: with each such assignment numba compiles
the text of its broadcasting error, which takes longer than most kernels. An array argument has no default None: that would be
another type, and a second compilation of the kernel and of all its callers.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(kernel: Kernel) -> Kernel:
    """Compile with IEEE arithmetic in the order of the source."""
    return cast("Kernel", numba.njit(nogil=True, cache=True)(kernel))


def compiled_sum(kernel: Kernel) -> Kernel:
    """Compile with sums whose terms may be added in any order, so that they use the vector units."""
    return cast("Kernel", numba.njit(nogil=True, cache=True, fastmath={"reassoc"})(kernel))


def inlined(kernel: Kernel) -> Kernel:
    """Compile into each caller: passing arrays to a function per row costs more than the row."""
    return cast("Kernel", numba.njit(nogil=True, inline="always")(kernel))
