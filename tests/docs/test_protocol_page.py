"""docs/protocol.md says what the sources do: every reason, every chapter, every call, and the bytes."""

import ast
import re
from collections.abc import Iterator

from safe_psrl_conformance import CHAPTERS
from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server import errors
from safe_psrl_server.rpc.errors import CODES
from tests.docs.markdown import ROOT, anchors

PAGE = ROOT / "docs" / "protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")
SOURCES = ROOT / "server" / "safe_psrl_server"
KINDS = {kind.__name__: kind for kind in CODES}
LIMIT = "_exceeded"  # makes a LimitExceededError of its reason


def reason_place(name: str) -> int:
    """Which argument of an error's constructor is its reason."""
    return 2 if name == errors.InvalidArgumentError.__name__ else 1


def given(call: ast.Call, name: str) -> str | None:
    """The reason that `call` gives; of the class if none is; None if it is handed on from elsewhere."""
    place = reason_place(name)
    if len(call.args) <= place:
        return KINDS[name].reason
    argument = call.args[place]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def reasons_of_the_sources() -> Iterator[tuple[str, str]]:
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            name = errors.LimitExceededError.__name__ if node.func.id == LIMIT else node.func.id
            if name in KINDS and (reason := given(node, name)) is not None:
                yield CODES[KINDS[name]].name, reason


def test_the_table_of_errors_is_complete_and_has_nothing_else() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|", TEXT, flags=re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(reasons_of_the_sources())
    assert len(rows) > 30


def test_every_chapter_of_the_kit_is_one_of_the_page_in_its_order() -> None:
    headings = [heading.lower() for heading in re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)]
    assert [heading for heading in headings if heading in CHAPTERS] == list(CHAPTERS)
    assert "glossary" in anchors(PAGE)


def test_every_call_of_the_contract_is_named() -> None:
    for file in ("control", "admin"):
        contract = (ROOT / "proto" / "safe_psrl_proto" / "v1" / f"{file}.proto").read_text(encoding="utf-8")
        for call in re.findall(r"^  rpc (\w+)", contract, flags=re.MULTILINE):
            assert f"`{call}" in TEXT or call in {"GetPolicy", "GetPosterior", "GetAgent"}, call


def test_the_bytes_of_the_walk_through_are_those_of_the_contract() -> None:
    frames = [bytes.fromhex(row) for row in re.findall(r"^DATA +((?:[0-9a-f]{2} +)+)", TEXT, flags=re.MULTILINE)]
    assert len(frames) == 2
    for frame in frames:
        assert frame[0] == 0
        assert int.from_bytes(frame[1:5], "big") == len(frame) - 5
    request = control_pb2.GetActionRequest(agent="buffer", state=3, episode=1, step=0)
    assert frames[0][5:] == request.SerializeToString()
    assert frames[1][5:] == control_pb2.GetActionResponse(action=1, episode=1).SerializeToString()
