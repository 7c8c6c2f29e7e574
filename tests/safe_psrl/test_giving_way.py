"""Long loops give the core away between two stretches, in idle time only."""

import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from safe_psrl.giving_way import give_way

TIMES = 100

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's scheduler")


@njit(nogil=True)
def give_way_often(times: int) -> None:
    for _ in range(times):
        give_way()


@njit(nogil=True)
def give_way_until(over: NDArray[np.int64]) -> None:
    while over[0] == 0:
        give_way()


def switches(policy: str) -> int:
    """How often a thread with that policy lost the core while it gave way many times."""
    os.sched_setscheduler(0, getattr(os, policy), os.sched_param(0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    give_way_often(0)  # compiled
    before = resource.getrusage(resource.RUSAGE_THREAD)
    give_way_often(TIMES)
    after = resource.getrusage(resource.RUSAGE_THREAD)
    return after.ru_nivcsw - before.ru_nivcsw


@pytest.fixture
def rival() -> Iterator[None]:
    """A thread that wants the same core whenever it is idle."""
    over: Any = np.zeros(1, np.int64)

    def run() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        give_way_until(over)

    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(run)
        yield
        over[0] = 1
        running.result()


@pytest.mark.usefixtures("rival")
@pytest.mark.parametrize(("policy", "gives_way"), [("SCHED_IDLE", True), ("SCHED_OTHER", False)])
def test_a_thread_of_idle_time_gives_way(policy: str, gives_way: bool) -> None:
    with ThreadPoolExecutor(1) as executor:
        count = executor.submit(switches, policy).result()
    assert (count > TIMES / 2) == gives_way
