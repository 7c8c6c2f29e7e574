"""Every call that clients made, with when it began and ended and what came of it: one entry for each attempt.

`ok`: acknowledged. `error`: refused, so nothing has happened. `unknown`: perhaps carried out; the call was repeated.
"""

import json
import threading
from pathlib import Path
from typing import Any, NamedTuple, Self

from google.protobuf import json_format
from google.protobuf.message import Message

OK, ERROR, UNKNOWN = "ok", "error", "unknown"


class Entry(NamedTuple):
    """One attempt of one call."""

    client: str
    call: str
    request: Any
    begin: float  # by the clock that never goes back
    end: float
    outcome: str
    code: str  # of the status
    reply: Any  # None unless it is ok
    expected: str  # the status that the client wanted; OK, but for deliberate mistakes


class History:
    """Entries of many threads, which are also written to a file as JSON lines, for people."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        line = json.dumps(entry._asdict(), default=_document) + "\n"
        with self._lock:
            self._entries.append(entry)
            self._file.write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def entries(self) -> list[Entry]:
        """All of them so far, in the order in which they ended."""
        with self._lock:
            return sorted(self._entries, key=lambda entry: entry.end)


def _document(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def brief(message: Message) -> str:
    """For people, on one line."""
    return " ".join(str(message).split())[:300]
