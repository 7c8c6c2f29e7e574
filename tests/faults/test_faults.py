"""Every fault, so many rounds. Short in `make test`; `make test-faults` sets rounds, seed and a directory for the rows.

SAFE_PSRL_FAULT_ROUNDS, SAFE_PSRL_FAULT_SEED and SAFE_PSRL_FAULT_ROWS are what it sets.
"""

import json
import os
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault
from tests.faults.suite import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("SAFE_PSRL_FAULT_ROUNDS", "0"))
SEED = int(os.environ.get("SAFE_PSRL_FAULT_SEED", "2026"))
ROWS = os.environ.get("SAFE_PSRL_FAULT_ROWS")


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(kind: type[Fault], tmp_path: Path) -> None:
    row = run(kind, ROUNDS or kind.short_rounds, SEED, tmp_path)
    assert (row["lost"], row["duplicated"]) == (0, 0)
    if ROWS:
        (Path(ROWS) / f"{kind.__name__}.json").write_text(json.dumps(row), encoding="utf-8")
