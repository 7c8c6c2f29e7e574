"""What the clients of a load share: whether calls are held back, and how far each client is."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.faults.history import History

STUCK_SECONDS: Final = 300.0  # a call that was not acknowledged for so long will not be
# After these it is unknown whether the call was, or will be, carried out.
UNCERTAIN: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"})


class Traffic:
    """What the clients share."""

    def __init__(
        self, history: History, targets: Sequence[str], *, patience: float = 2.0, uncertain: frozenset[str] = frozenset()
    ) -> None:
        self.history = history
        self.targets = targets
        self.patience = patience  # seconds that an attempt may take
        self.uncertain = UNCERTAIN | uncertain
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.has_ended: Callable[[], bool] = lambda: False  # the server, by itself
        self._counts: Counter[str] = Counter()
        self._latest: dict[str, float] = {}  # by client: when its latest acknowledged call began
        self._changed = threading.Condition()
        self._held = False
        self._under_way = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For an attempt: waits while calls are held back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No call is under way, and none begins."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: self._under_way == 0)
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    def acknowledged(self, client: str, begin: float) -> None:
        with self._changed:
            self._counts[client] += 1
            self._latest[client] = begin
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def wait_for_calls(self, clients: Sequence[str], more: int) -> None:
        """Until so many more calls of each are acknowledged, or something is wrong already."""
        goals = {client: self._counts[client] + more for client in clients}
        self._wait_for(lambda: all(self._counts[client] >= goal for client, goal in goals.items()))

    def wait_for_calls_after(self, clients: Sequence[str], moment: float) -> None:
        """Until each had a call acknowledged that began after `moment`."""
        self._wait_for(lambda: all(self._latest.get(client, 0.0) >= moment for client in clients))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + STUCK_SECONDS + 30
        with self._changed:
            while not self._changed.wait_for(lambda: self.failure is not None or condition(), 0.5):
                if self.has_ended():
                    self.failure = AssertionError("the server has ended by itself")
                if time.monotonic() > until:
                    self.failure = AssertionError("the clients are not served any more")
        if self.failure is not None:
            raise self.failure
