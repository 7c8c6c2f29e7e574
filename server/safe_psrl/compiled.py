"""How hot kernels are compiled: one place for numba's flags.

Compiled code runs without the interpreter's lock and is kept in numba's cache beside the source. numba knows no types that
a checker could read, so the decorators promise what is true: the compiled function is called like the plain one.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(kernel: Kernel) -> Kernel:
    """Compile with IEEE arithmetic in the order of the source."""
    return cast("Kernel", numba.njit(nogil=True, cache=True)(kernel))


def compiled_sum(kernel: Kernel) -> Kernel:
    """Compile a sum whose terms may be added in any order, so that it fills the vector units."""
    return cast("Kernel", numba.njit(nogil=True, cache=True, fastmath={"reassoc"})(kernel))


def inlined(kernel: Kernel) -> Kernel:
    """Compile into each caller: for what is done for a single row, of which a call and its counted references cost most."""
    return cast("Kernel", numba.njit(nogil=True, inline="always")(kernel))
