"""The mutations apply to the present sources; `make test-mutations` shows that each is caught."""

import ast

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.mutations import MUTATIONS, ROOT, Mutation, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_an_edit_applies_exactly_once_and_gives_sound_python(mutation: Mutation) -> None:
    assert mutation.fault in {kind.__name__ for kind in FAULTS}
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        text = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
        texts[edit.file] = mutated(text, edit)
    for file, text in texts.items():
        ast.parse(text, file)
        assert text != (ROOT / file).read_text(encoding="utf-8")
