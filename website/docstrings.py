"""A griffe extension: paragraphs of `name: text` lines in a docstring become a list."""

import re
from typing import Any, Final

import griffe

FIRST: Final = re.compile(r"^[a-z_]+: \S")
ITEM: Final = re.compile(r"^([a-z_]+): (?=\S)", flags=re.MULTILINE)


class ParameterList(griffe.Extension):
    """Applied to every object that a page documents."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(
                ITEM.sub(r"- `\1`: ", paragraph) if FIRST.match(paragraph) else paragraph for paragraph in paragraphs
            )
