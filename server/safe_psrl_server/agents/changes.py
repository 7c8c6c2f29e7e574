"""Which agents have changed lately, and which were deleted: for those who watch."""

from typing import Final, NamedTuple

MOST_NAMES: Final = 100_000


class Changes(NamedTuple):
    """Names that changed and names that were deleted after a revision; `complete` unless that was too long ago."""

    changed: list[str]
    deleted: list[str]
    complete: bool


class ChangeLog:
    """Every change has a number, its revision. The latest ones are kept."""

    def __init__(self) -> None:
        self.revision = 0
        self._revisions: dict[str, int] = {}  # by name, latest last; negative for deletions
        self._forgotten = 0  # the latest revision that is no longer kept

    def changed(self, name: str) -> None:
        self._note(name, 1)

    def deleted(self, name: str) -> None:
        self._note(name, -1)

    def since(self, revision: int) -> Changes:
        """What happened after `revision`."""
        changed, deleted = list[str](), list[str]()
        for name, signed in reversed(self._revisions.items()):
            if abs(signed) <= revision:
                break
            (changed if signed > 0 else deleted).append(name)
        return Changes(sorted(changed), sorted(deleted), revision >= self._forgotten)

    def _note(self, name: str, sign: int) -> None:
        self.revision += 1
        self._revisions.pop(name, None)
        self._revisions[name] = sign * self.revision
        if len(self._revisions) > MOST_NAMES:
            oldest = next(iter(self._revisions))
            self._forgotten = abs(self._revisions.pop(oldest))
