"""Every call that clients made, with when it began and ended and what came of it: JSON lines, one for each attempt.

`ok`: acknowledged. `error`: refused, so nothing has happened. `unknown`: perhaps carried out; the call was repeated.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from google.protobuf import json_format
from google.protobuf.message import Message

from safe_psrl_proto.v1 import admin_pb2, control_pb2

OK, ERROR, UNKNOWN = "ok", "error", "unknown"
MESSAGES: dict[str, tuple[type[Message], type[Message]]] = {
    "CreateAgent": (admin_pb2.CreateAgentRequest, admin_pb2.CreateAgentResponse),
    "GetAgent": (admin_pb2.GetAgentRequest, admin_pb2.GetAgentResponse),
    "StartEpisode": (control_pb2.StartEpisodeRequest, control_pb2.StartEpisodeResponse),
    "GetAction": (control_pb2.GetActionRequest, control_pb2.GetActionResponse),
    "ReportTransition": (control_pb2.ReportTransitionRequest, control_pb2.ReportTransitionResponse),
    "Step": (control_pb2.StepRequest, control_pb2.StepResponse),
    "ReportEpisode": (control_pb2.ReportEpisodeRequest, control_pb2.ReportEpisodeResponse),
    "EndEpisode": (control_pb2.EndEpisodeRequest, control_pb2.EndEpisodeResponse),
}


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
    """A file that is written by many threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def record(self, entry: Entry) -> None:
        document = entry._asdict()
        document["request"] = _document(entry.request)
        document["reply"] = None if entry.reply is None else _document(entry.reply)
        line = json.dumps(document) + "\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def entries(self) -> list[Entry]:
        """All of them so far, in the order in which they ended."""
        with self._lock:
            self._file.flush()
        return read(self.path)


def read(path: Path) -> list[Entry]:
    """The history in a file, in the order in which the calls ended."""
    with path.open(encoding="utf-8") as lines:
        return sorted(_parsed(lines), key=lambda entry: entry.end)


def _parsed(lines: Iterator[str]) -> Iterator[Entry]:
    for line in lines:
        document = json.loads(line)
        request, reply = MESSAGES[document["call"]]
        document["request"] = json_format.ParseDict(document["request"], request())
        if document["reply"] is not None:
            document["reply"] = json_format.ParseDict(document["reply"], reply())
        yield Entry(**document)


def _document(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def brief(message: Message) -> str:
    """For people, on one line."""
    return " ".join(str(message).split())[:300]
