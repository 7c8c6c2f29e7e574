"""Functions as text: the same text for the same function, also in another process."""

import ast
import hashlib
import inspect
from collections.abc import Callable
from textwrap import dedent
from typing import Any


def description_of(function: Callable[..., Any]) -> str:
    """Its name, and a digest of its source where that can be read. Comments and formatting do not count, closures neither."""
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition(".")[2]
    source = _source(function)
    return name if source is None else f"{name} {hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _source(function: Callable[..., Any]) -> str | None:
    """None for built-in functions, and for a lambda that does not stand alone on its lines."""
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (TypeError, OSError, SyntaxError):
        return None
    kind = ast.Lambda if getattr(function, "__name__", "") == "<lambda>" else ast.FunctionDef
    found = [node for node in ast.walk(tree) if isinstance(node, kind)]
    if not found or (kind is ast.Lambda and len(found) > 1):
        return None
    return ast.unparse(found[0])
