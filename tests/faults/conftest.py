"""Where the suite's modules and those that all tests of processes share are found."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "system")]
