"""Specifications as TOML or JSON text. Text in, text out: callers read and write files."""

import json
import math
import re
import tomllib
from difflib import get_close_matches
from inspect import signature
from typing import Any, Final

import numpy as np
import tomli_w
from numpy.typing import NDArray

from safe_psrl.errors import SpecError
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.options import DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
from safe_psrl.problem.support import written

SPEC_FIELDS: Final = tuple(signature(CmdpSpec).parameters)
CONSTRAINT_FIELDS: Final = tuple(signature(Constraint).parameters)
ROW: Final = re.compile(r"\[\n((?: *[\w.+-]+,?\n)+) *\]")  # numbers, one a line; strings have no line ends
OPTION_FIELDS: Final = tuple(signature(SafePsrlOptions).parameters)
DRIFT_FIELDS: Final = tuple(signature(DriftOptions).parameters)


PAPERS: Final = ("pessimism_coefficient", "cap_pessimism", "max_kernel_draws")


def parse_document(text: str, kind: str) -> dict[str, Any]:
    """`text` in `kind` ("toml" or "json") as a dictionary."""
    try:
        document = json.loads(text) if kind == "json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # both parsers' own errors are ValueErrors, as is a number of too many digits
        raise SpecError(f"{kind} document", text[:20], f"cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise SpecError(f"{kind} document", text[:20], "must be a table of fields")
    return document


def write_document(document: dict[str, Any], kind: str) -> str:
    """As text in `kind` ("toml" or "json"), with each row of a table on one line."""
    text = json.dumps(_with_nulls(document), indent=2) + "\n" if kind == "json" else tomli_w.dumps(document)
    return ROW.sub(lambda found: "[" + ", ".join(found[1].replace(",", " ").split()) + "]", text)


def spec_from_document(document: dict[str, Any]) -> CmdpSpec:
    """The specification with the fields of `document`, the parameters of `CmdpSpec`."""
    _refuse_unknown(document, SPEC_FIELDS, "")
    _require(document, ("num_states", "num_actions", "horizon", "reward", "constraints"), "")
    entries = document["constraints"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SpecError("constraints", entries, "must be a list of tables")
    for i, entry in enumerate(entries):
        _refuse_unknown(entry, CONSTRAINT_FIELDS, f"constraints[{i}].")
        _require(entry, CONSTRAINT_FIELDS[:4], f"constraints[{i}].")
    constraints = [Constraint(**entry) for entry in entries]
    return CmdpSpec(**{**document, "constraints": constraints})


def spec_to_document(spec: CmdpSpec) -> dict[str, Any]:
    """The shortest document that gives `spec` again."""
    document: dict[str, Any] = {
        "num_states": spec.num_states,
        "num_actions": spec.num_actions,
        "horizon": CONTINUING if spec.is_continuing else spec.horizon,
    }
    for field in ("state_names", "action_names"):
        if names := getattr(spec, field):
            document[field] = list(names)
    if not spec.stationary:
        document["stationary"] = False
    starts = np.flatnonzero(spec.initial_distribution)
    if len(starts) == 1 and spec.initial_distribution[starts[0]] == 1:
        document["initial_state"] = int(starts[0])
    else:
        document["initial_distribution"] = spec.initial_distribution.tolist()
    document["reward"] = _signal(spec, 0)
    if spec.learned[0].all():
        document["reward_learned"] = True
    if not spec.available_actions.all():
        document["available_actions"] = spec.available_actions.tolist()
    if spec.lists_next_states:
        document["next_states"] = _steps(written(spec.next_states, spec.dirichlet_prior))
    elif not spec.support.all():
        document["support"] = _steps(spec.support)
    weights = spec.dirichlet_prior[spec.support]
    uniform = weights.size > 0 and bool((weights == weights[0]).all())
    document["dirichlet_prior"] = float(weights[0]) if uniform else _steps(spec.dirichlet_prior)
    document["constraints"] = [
        {
            "name": name,
            "cost": _signal(spec, 1 + i),
            "cost_budget": float(spec.cost_budgets[i]),
            "satisfiable_cost": float(spec.satisfiable_costs[i]),
            **({"learned": True} if spec.learned[1 + i].all() else {}),
        }
        for i, name in enumerate(spec.constraint_names)
    ]
    return document


def options_from_document(document: dict[str, Any]) -> SafePsrlOptions:
    _refuse_unknown(document, OPTION_FIELDS, "")
    return SafePsrlOptions(**document)


def drift_from_document(document: dict[str, Any]) -> DriftOptions:
    _refuse_unknown(document, DRIFT_FIELDS, "")
    return DriftOptions(**document)


def options_to_document(options: SafePsrlOptions) -> dict[str, Any]:
    """The options that apply to the method."""
    foreign = PAPERS if options.is_certified else ("confidence",)
    return {field: getattr(options, field) for field in OPTION_FIELDS if field not in foreign}


def scalar_of(text: str) -> bool | int | float | str:
    """A value from a command line: true, 3, 0.5, or else the text itself."""
    if text in {"true", "false"}:
        return text == "true"
    try:
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _signal(spec: CmdpSpec, n: int) -> list[Any]:
    """A reward or cost table; NaN where single entries are unknown."""
    learned = spec.learned[n]
    return _steps(spec.signals[n] if learned.all() else np.where(learned, np.nan, spec.signals[n]))


def _with_nulls(value: Any) -> Any:
    """The same with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _with_nulls(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_with_nulls(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _steps(table: NDArray[Any]) -> list[Any]:
    """Nested lists, without the leading axis where it has length 1."""
    return list((table[0] if len(table) == 1 else table).tolist())


def _refuse_unknown(document: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for field, value in document.items():
        if field not in known:
            close = get_close_matches(field, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
            raise SpecError(where + (field if field.isprintable() else repr(field)), value, f"is not a field; {hint}")


def _require(document: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        if field not in document:
            raise SpecError(f"{where}{field}", None, "is missing")
