"""Names for the array types that compiled code takes."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
NextStates = NDArray[np.int32]  # [0|1|H, S, A, W], see `problem.support`
Policy = NDArray[np.int32]  # [H, S]
Policies = NDArray[np.int32]  # several, one for each entry of the first axis
Words = NDArray[np.uint64]  # [4], see `posterior.streams`
