"""Conversion of user input into arrays of known shape, or one error that names the place."""

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.errors import SpecError

Scalar = TypeVar("Scalar", bound=np.generic)
Table = TypeVar("Table", bound=NDArray[Any])
Shapes = Mapping[str, tuple[int, ...]]
MAX_INTEGER = 2**63 - 1


def checked_integer(field: str, value: object, low: int, high: int = MAX_INTEGER) -> int:
    """A whole number from `low` to `high`; True and 3.0 are not whole numbers here."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise SpecError(field, value, "must be a whole number")
    if not low <= value <= high:
        wanted = f"at least {low}" if high == MAX_INTEGER else f"from {low} to {high}"
        raise SpecError(field, value, f"must be a whole number, {wanted}")
    return int(value)


def checked_flag(field: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise SpecError(field, value, "must be true or false")
    return bool(value)


def checked_number(field: str, value: object) -> float:
    """A finite number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise SpecError(field, value, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(field, value, "must be finite")
    return number


MAX_NAME: Final = 100  # characters of a state's or an action's name


def checked_names(field: str, value: object, size: int) -> tuple[str, ...]:
    """`size` different names, or none."""
    if not isinstance(value, tuple | list):
        raise SpecError(field, value, "must be a list of names")
    if len(value) not in {0, size}:
        raise SpecError(f"number of {field}", len(value), f"must be {size}")
    places: dict[str, int] = {}
    for i, entry in enumerate(value):
        name = checked_name(f"{field}[{i}]", entry)
        if len(name) > MAX_NAME:
            raise SpecError(f"{field}[{i}]", name, f"must be at most {MAX_NAME} characters, got {len(name)}")
        if name in places:
            raise SpecError(f"{field}[{i}]", name, f"must differ from {field}[{places[name]}]")
        places[name] = i
    return tuple(value)


def checked_name(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(field, value, "must be a non-empty name")
    return value


def checked_table(field: str, value: ArrayLike, shapes: Shapes, *, unknown: bool = False) -> NDArray[np.float64]:
    """A table of finite numbers whose shape is one of `shapes`, named for the error message.

    With `unknown`, entries may be NaN or None, and are NaN in the result.
    """
    return _shaped(field, _numbers(field, value, unknown=unknown), shapes)


def checked_mask(field: str, value: ArrayLike, shapes: Shapes) -> NDArray[np.bool_]:
    """A table of true and false (or 1 and 0)."""
    table = _numbers(field, value)
    refuse_where(field, table, (table != 0) & (table != 1), "must be true or false")
    return _shaped(field, table.astype(np.bool_), shapes)


def refuse_where(field: str, table: NDArray[Any], wrong: NDArray[np.bool_], requirement: str) -> None:
    """Raise for the first entry of `table` at which `wrong` is true."""
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise SpecError(field + "".join(f"[{i}]" for i in place), table[place], requirement)


def frozen(table: NDArray[Any], dtype: type) -> NDArray[Any]:
    """A read-only C-ordered copy."""
    return sealed(np.array(table, dtype=dtype, order="C"))


def sealed(table: Table) -> Table:
    """The same table, read-only from now on. Compiled code knows the two apart, so this also spares a compilation."""
    table.setflags(write=False)
    return table


def _numbers(field: str, value: ArrayLike, *, unknown: bool = False) -> NDArray[np.float64]:
    requirement = "must be a table of numbers with rows of equal length"
    try:
        given = np.asarray(value)
        table = given.astype(np.float64) if given.dtype.kind in "biufO" else None
    except (TypeError, ValueError, OverflowError):
        raise SpecError(field, value, requirement) from None
    # numpy would read words as numbers, and drop imaginary parts
    if table is None or (given.dtype.kind == "O" and any(isinstance(entry, str) for entry in given.flat)):
        raise SpecError(field, value, requirement)
    finite = np.isfinite(table)
    refuse_where(field, table, ~(finite | np.isnan(table)) if unknown else ~finite, "must be finite")
    return table


def _shaped(field: str, table: NDArray[Scalar], shapes: Shapes) -> NDArray[Scalar]:
    if table.shape not in shapes.values():
        wanted = " or ".join(f"{name} = {list(shape)}" for name, shape in shapes.items())
        raise SpecError(f"shape of {field}", list(table.shape), f"must be {wanted}")
    return table
