"""One thing that is sent to the server, and how it is kept in a file."""

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from safe_psrl_proto.v1 import admin_pb2, control_pb2

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True)
class Input:
    """`door` is where it is sent: grpc (a call of `method`), http or wire (bytes on a connection), or document (a text).

    `lane` is the agent that it is about; `identity` is whose token goes with it.
    """

    kind: str
    door: str
    lane: int
    messages: tuple[bytes, ...]
    method: str = ""
    identity: str = "admin"
    metadata: Metadata = ()
    gzip: bool = False  # compressed on the way

    @property
    def call(self) -> str:
        """The name of the method, without its service."""
        return self.method.rpartition("/")[2]

    def describe(self) -> str:
        sizes = "+".join(str(len(message)) for message in self.messages[:5]) + ("+…" if len(self.messages) > 5 else "")
        return f"{self.kind} {self.call or self.door} ({sizes} bytes)"


METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for module in (control_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
READING = {
    "GetAgent",
    "ListAgents",
    "GetPolicy",
    "GetPosterior",
    "ExplainAction",
    "CompareAgent",
    "WatchAgents",
    "ExportAgent",
    "ExportTransitions",
    "VerifyAgent",
    "ListEvents",
    "GetHistory",
}


def path_of(call: str) -> str:
    """As gRPC spells it."""
    return f"/{METHODS[call].containing_service.full_name}/{call}"


def save(inputs: list[Input], finding: str, path: Path) -> None:
    """In the order in which they are to be sent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"finding": finding, "inputs": [_document(each) for each in inputs]}, indent=1) + "\n")


def load(path: Path) -> list[Input]:
    return [_input(document) for document in json.loads(path.read_text())["inputs"]]


def _document(given: Input) -> dict[str, Any]:
    return {
        **asdict(given),
        "messages": [base64.b64encode(message).decode() for message in given.messages],
        "metadata": [
            [key, {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value]
            for key, value in given.metadata
        ],
    }


def _input(document: dict[str, Any]) -> Input:
    metadata = [
        (key, base64.b64decode(value["bytes"]) if isinstance(value, dict) else value) for key, value in document.pop("metadata")
    ]
    messages = [base64.b64decode(message) for message in document.pop("messages")]
    return Input(**document, messages=tuple(messages), metadata=tuple(metadata))
