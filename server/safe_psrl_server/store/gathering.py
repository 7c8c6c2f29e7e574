"""When a commit is made: at once for whoever is alone, else when the loop is quiet, so that many share it.

Calls may wait for that undecided: what is decided in a row, right before the commit, finds the code and the tables that it
needs in the processor's caches, where calls that are decided one by one, as they come, have to fetch them each time.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

MAX_GROUP: Final = 1024  # entries of a commit
EMPTY_PASS: Final = 30e-6  # seconds: a pass of the loop that took longer has done something
QUIET_PASSES: Final = 3  # of them before a commit; what a call needs takes several passes
PATIENT_PASSES: Final = 12  # the same where many call
MANY_ARRIVALS: Final = 4  # passes in which calls came to the last commit
FAST_COMMIT: Final = 0.001  # seconds: if a disk usually takes no longer, a call that is alone waits for it without a thread
LONE_COMMITS: Final = 16  # that are made at once after one that nobody came to share; then it is seen whether that is still so
REMEMBERED: Final = 0.1  # how much the latest commit counts in what is usual
MOST_DELAY: Final = 0.002  # seconds that a commit waits for others to join it: where many call, it is made while more come
AT_ONCE: Final = 0.002  # seconds that calls are decided in a row: others are to be answered, too

Entry = TypeVar("Entry")
Work = Callable[[], None]


class Gathering(Generic[Entry]):
    """What waits for the next commit of one store: entries, and work that will make some.

    `commit` is called with the entries of a commit, and whether the loop itself should make it. Whoever made it says `over`.
    Only entries that are `small` are committed by the loop.
    """

    def __init__(self, commit: Callable[[list[Entry], bool], None], is_small: Callable[[Entry], bool]) -> None:
        self.is_busy = False  # a commit is under way, or about to be
        self._commit = commit
        self._is_small = is_small
        self._entries: list[Entry] = []
        self._work: deque[Work] = deque()
        self._is_behind = False  # some of the work had to be left for the next commit
        self._arrivals = 0  # passes in which somebody came to wait for the next commit
        self._lone_commits = 0  # that may be made at once
        self._was_shared = False  # the last commit
        self._last_commit = 0.0  # when it was over
        self._usual_seconds = float("inf")  # that a commit takes

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def is_wanted(self) -> bool:
        """Whether whoever comes now will share a commit, or should wait to see whether others do."""
        return self.is_busy or not self._expects_nobody()

    def add(self, entry: Entry) -> None:
        """To the next commit, which is made now if nobody else is expected."""
        self._entries.append(entry)
        if self.is_busy:
            return
        if self._expects_nobody() and self._is_small(entry):
            self._lone_commits -= 1
            self._make()
        else:
            self._await_quiet(MOST_DELAY)

    def gather(self, work: Work) -> None:
        """Have `work` done right before the next commit. It adds entries, or none, and must not raise."""
        self._work.append(work)
        if not self.is_busy:
            self._await_quiet(MOST_DELAY)

    def took(self, seconds: float | None) -> None:
        """A commit, if that says anything about the next. From any thread."""
        self._last_commit = time.perf_counter()
        if seconds is not None:
            known = self._usual_seconds if self._usual_seconds < float("inf") else seconds
            self._usual_seconds = known + REMEMBERED * (seconds - known)

    def over(self, entries: int) -> None:
        """A commit of so many, and they know it."""
        self._was_shared, self.is_busy = entries > 1, False
        if self._entries or self._work:
            self._await_quiet(0.0 if self._is_behind else MOST_DELAY)

    def give_up(self) -> list[Entry]:
        """What waits, when nothing is committed any more. Work is done, so that it hears of it."""
        while self._work:
            self._work.popleft()()
        entries, self._entries = self._entries, []
        return entries

    def _expects_nobody(self) -> bool:
        """Whether nobody came to share the last commits, nor was there already while the last one was made, and that is soon
        over: then a call is committed without waiting for others."""
        return self._lone_commits > 0 and self._is_quick() and time.perf_counter() - self._last_commit > self._usual_seconds

    def _is_quick(self) -> bool:
        return not self._was_shared and self._usual_seconds <= FAST_COMMIT

    def _await_quiet(self, most_delay: float) -> None:
        """Commit as soon as the loop has nothing else to do: until then more may come to share the commit.

        A caller waits for a few empty passes of the loop. Where calls came one by one to the last commit, more passes are
        waited for: the next caller is about to come. Those of one message come at once. Whoever was alone is taken to be so
        for some commits more, which are not waited with at all.
        """
        self.is_busy = True
        now = time.perf_counter()
        enough = PATIENT_PASSES if self._arrivals >= MANY_ARRIVALS else QUIET_PASSES
        self._arrivals = 0
        self._loop.call_soon(self._look, now, now + most_delay, enough, enough, 0)

    def _look(self, before: float, latest: float, enough: int, quiet: int, known: int) -> None:
        """A pass of the loop that began at `before`, with `known` waiting, is over; `quiet` empty ones are waited for still."""
        os.sched_yield()  # to the threads that bring calls
        now, waiting = time.perf_counter(), len(self._entries) + len(self._work)
        self._arrivals += waiting > known
        quiet = quiet - 1 if now - before < EMPTY_PASS else enough
        if quiet and now < latest and waiting < MAX_GROUP:
            self._loop.call_soon(self._look, now, latest, enough, quiet, waiting)
            return
        self._lone_commits = LONE_COMMITS if waiting == 1 and not self._was_shared else 0
        self._do_gathered()
        if self._entries:
            self._make()
        else:
            self.over(waiting)

    def _do_gathered(self) -> None:
        latest = time.perf_counter() + AT_ONCE
        while self._work and len(self._entries) < MAX_GROUP and time.perf_counter() < latest:
            self._work.popleft()()
        self._is_behind = bool(self._work)

    def _make(self) -> None:
        self.is_busy = True
        entries, self._entries = self._entries, []
        self._commit(entries, len(entries) == 1 and self._is_quick() and self._is_small(entries[0]))
