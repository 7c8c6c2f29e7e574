"""Policies and posteriors as grids of coloured cells: their content, not their drawing."""

import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from safe_psrl_proto.v1 import events_pb2, model_pb2

MOST_CELLS: Final = 4_000
FAINT: Final = 0.6

# For categories: the palette of Okabe and Ito, which colour-blind people can tell apart.
CATEGORIES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f")

# For quantities, from little to much: cividis, which is as even for colour-blind people as for others.
SEQUENCE: Final = ("#00224e", "#1f3a6d", "#434e6c", "#61646f", "#7d7c78", "#9b9476", "#bbaf6e", "#dccb5c", "#fee838")


@dataclass(frozen=True)
class Grid:
    """Cells row by row: colour, text colour, text and tooltip."""

    x: str
    y: str
    rows: int
    columns: int
    colours: list[str]
    inks: list[str]
    texts: list[str]
    says: list[str]
    hint: str
    opacities: list[float] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)  # colour and its meaning
    cut: str = ""  # what is not shown


def policy_grid(policy: model_pb2.Policy) -> Grid:
    """Action by state (down) and step (across). Of a mixture, the drawn policy, its actions' probability as opacity."""
    horizon, num_states = policy.horizon, policy.num_states
    columns = min(horizon, MOST_CELLS)
    rows = min(num_states, max(1, MOST_CELLS // columns))
    cells = [step * num_states + state for state in range(rows) for step in range(columns)]
    actions = [policy.actions[i] for i in cells]
    colours = [category(action) for action in actions]
    chances = [_chances(policy, i) for i in cells] if policy.mixture else []
    likely = [chance[action] for chance, action in zip(chances, actions, strict=False)]
    says = [f"step {i // num_states}, state {i % num_states}: action {policy.actions[i]}" for i in cells]
    if chances:
        says = [f"{text}, of {_in_words(chance)}" for text, chance in zip(says, chances, strict=True)]
    return Grid(
        "step",
        "state",
        rows,
        columns,
        colours,
        _inks(colours, likely),
        [str(action) for action in actions],
        says,
        "Point at a cell to read it.",
        [0.25 + 0.75 * chance for chance in likely],
        [(category(action), f"action {action}") for action in sorted(set(actions))],
        _cut(rows, num_states, columns, horizon, "step"),
    )


def _inks(colours: list[str], likely: list[float]) -> list[str]:
    """On a faint cell the background shows through, so its own text colour is more legible."""
    return ["var(--ink)" if likely and likely[i] < FAINT else ink_on(colour) for i, colour in enumerate(colours)]


def _chances(policy: model_pb2.Policy, i: int) -> dict[int, float]:
    """The probability of each action at one place of a mixture, before a policy was drawn."""
    chances: dict[int, float] = {}
    for part in policy.mixture:
        chances[part.actions[i]] = chances.get(part.actions[i], 0.0) + part.share
    return chances


def _in_words(chances: dict[int, float]) -> str:
    return ", ".join(f"{action} ({chance:.0%})" for action, chance in sorted(chances.items()))


def visits(counts: events_pb2.PackedArray) -> tuple[int, int, list[int]]:
    """States, actions, and how often each action was seen in each state, state by state."""
    values = array("q", zlib.decompress(counts.data))
    if sys.byteorder == "big":
        values.byteswap()
    steps, num_states, num_actions, width = counts.shape
    pairs = num_states * num_actions
    seen = [sum(values[start : start + width]) for start in range(0, steps * pairs * width, width)]
    return num_states, num_actions, [sum(seen[pair::pairs]) for pair in range(pairs)]


def posterior_grid(num_states: int, num_actions: int, seen: Sequence[int]) -> Grid:
    """Visits by action (down) and state (across), on a logarithmic scale."""
    rows, columns = min(num_actions, 100), min(num_states, MOST_CELLS // min(num_actions, 100))
    counts = [seen[state * num_actions + action] for action in range(rows) for state in range(columns)]
    most = max(*counts, 1)
    colours = [shade(math.log1p(count) / math.log1p(most)) if count else "var(--unvisited)" for count in counts]
    return Grid(
        "state",
        "action",
        rows,
        columns,
        colours,
        ["var(--muted)" if not count else ink_on(colour) for count, colour in zip(counts, colours, strict=True)],
        [compact(count) for count in counts],
        [f"state {i % columns}, action {i // columns}: visited {count:,} times" for i, count in enumerate(counts)],
        "Point at a cell to read it.",
        legend=[("var(--unvisited)", "never"), (SEQUENCE[0], "once"), (SEQUENCE[-1], f"{most:,} times")],
        cut=_cut(columns, num_states, rows, num_actions, "action"),
    )


def _cut(states: int, all_states: int, others: int, all_others: int, other: str) -> str:
    parts = [f"the first {states:,} of {all_states:,} states"] if states < all_states else []
    parts += [f"the first {others:,} of {all_others:,} {other}s"] if others < all_others else []
    return f"Shown: {' and '.join(parts)}." if parts else ""


def category(number: int) -> str:
    return CATEGORIES[number % len(CATEGORIES)]


def shade(share: float) -> str:
    """From 0 to 1."""
    return SEQUENCE[min(int(share * len(SEQUENCE)), len(SEQUENCE) - 1)]


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on `colour`, #rrggbb."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if (1.05 / (luminance + 0.05)) > ((luminance + 0.05) / 0.05) else "#000000"


def compact(count: int) -> str:
    """12, 3.4k, 56k, 1.2M: four characters at most."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count // size}{unit}"
    return str(count)
