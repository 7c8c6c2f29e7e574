"""Policies and posteriors as grids of coloured cells: their content, not their drawing."""

import math
import sys
import zlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from safe_psrl_client.visible_text import visible
from safe_psrl_proto.v1 import events_pb2, model_pb2

MOST_CELLS: Final = 4_000
MOST_MEANINGS: Final = 20  # of colours, in a legend
FAINT: Final = 0.6
TYPE_CODES: Final = {"<i8": "q", "<f8": "d"}  # of `array`

# For categories: the palette of Okabe and Ito, which colour-blind people can tell apart.
CATEGORIES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f")

# For quantities, from low to high: cividis, which colour-blind people perceive as evenly as others.
SEQUENCE: Final = ("#00224e", "#1f3a6d", "#434e6c", "#61646f", "#7d7c78", "#9b9476", "#bbaf6e", "#dccb5c", "#fee838")


class Names(NamedTuple):
    """Of states and actions, if the specification has them."""

    states: Sequence[str] = ()
    actions: Sequence[str] = ()

    def state(self, number: int) -> str:
        return f"state {number} ({visible(self.states[number])})" if self.states else f"state {number}"

    def action(self, number: int) -> str:
        return f"action {number} ({visible(self.actions[number])})" if self.actions else f"action {number}"


UNNAMED: Final = Names()


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
    marked: list[int] = field(default_factory=list)  # cells with an outline


def policy_grid(policy: model_pb2.Policy, names: Names = UNNAMED) -> Grid:
    """Action by state (down) and step (across). Of a mixture, the drawn policy, its actions' probability as opacity.

    The policy of a continuing task has no steps: see `_probabilities_grid`.
    """
    if policy.probabilities:
        return _probabilities_grid(policy, names)
    horizon, num_states = policy.horizon, policy.num_states
    columns = min(horizon, MOST_CELLS)
    rows = min(num_states, max(1, MOST_CELLS // columns))
    cells = [step * num_states + state for state in range(rows) for step in range(columns)]
    actions = [policy.actions[i] for i in cells]
    colours = [category(action) for action in actions]
    chances = [_chances(policy, i) for i in cells] if policy.mixture else []
    likely = [chance[action] for chance, action in zip(chances, actions, strict=False)]
    says = [f"step {i // num_states}, {names.state(i % num_states)}: {names.action(policy.actions[i])}" for i in cells]
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
        "Point at a cell to read it; click to have it explained.",
        [0.25 + 0.75 * chance for chance in likely],
        [(category(action), names.action(action)) for action in sorted(set(actions))],
        _cut(rows, num_states, columns, horizon, "step"),
    )


def _probabilities_grid(policy: model_pb2.Policy, names: Names) -> Grid:
    """The probability of each action (across) in each state (down)."""
    num_states, num_actions = policy.num_states, len(policy.probabilities) // policy.num_states
    columns = min(num_actions, MOST_CELLS)
    rows = min(num_states, MOST_CELLS // columns)
    pairs = [(state, action) for state in range(rows) for action in range(columns)]
    shares = [policy.probabilities[state * num_actions + action] for state, action in pairs]
    colours = [category(action) for _, action in pairs]
    return Grid(
        "action",
        "state",
        rows,
        columns,
        colours,
        _inks(colours, shares),
        [f"{100 * share:.0f}" if share else "" for share in shares],
        [
            f"{names.state(pair[0])}: {names.action(pair[1])} with {share:.1%}"
            for pair, share in zip(pairs, shares, strict=True)
        ],
        "Probabilities in %. Point at a cell to read it; click to have it explained.",
        [share and 0.25 + 0.75 * share for share in shares],
        [(category(action), names.action(action)) for action in range(min(columns, MOST_MEANINGS))],
        _cut(rows, num_states, columns, num_actions, "action"),
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


def visits(counts: events_pb2.PackedArray) -> tuple[int, int, list[float]]:
    """States, actions, and the weight of the visits of each pair, state by state: their number, unless some is forgotten."""
    values = array(TYPE_CODES[counts.dtype], zlib.decompress(counts.data))
    if sys.byteorder == "big":
        values.byteswap()
    steps, num_states, num_actions, width = counts.shape
    pairs = num_states * num_actions
    seen = [sum(values[start : start + width]) for start in range(0, steps * pairs * width, width)]
    return num_states, num_actions, [sum(seen[pair::pairs]) for pair in range(pairs)]


def posterior_grid(
    num_states: int,
    num_actions: int,
    seen: Sequence[float],
    marked: Collection[tuple[int, int]] = (),
    names: Names = UNNAMED,
) -> Grid:
    """Weights of visits by action (down) and state (across), on a logarithmic scale. `marked`: (state, action) with drift."""
    rows, columns = min(num_actions, 100), min(num_states, MOST_CELLS // min(num_actions, 100))
    pairs = [(state, action) for action in range(rows) for state in range(columns)]
    counts = [seen[state * num_actions + action] for state, action in pairs]
    most = max(*counts, 1.0)
    colours = [shade(math.log1p(count) / math.log1p(most)) if count else "var(--unvisited)" for count in counts]
    numbers = are_numbers(seen)
    says = [
        f"{names.state(state)}, {names.action(action)}: "
        + (f"visited {count:,.0f} times" if numbers else f"visits of weight {weight(count)}")
        for (state, action), count in zip(pairs, counts, strict=True)
    ]
    found = [i for i, pair in enumerate(pairs) if pair in marked]
    for i in found:
        says[i] += "; drift was detected here"
    return Grid(
        "state",
        "action",
        rows,
        columns,
        colours,
        ["var(--muted)" if not count else ink_on(colour) for count, colour in zip(counts, colours, strict=True)],
        [compact(count) for count in counts],
        says,
        "Point at a cell to read it.",
        legend=[
            ("var(--unvisited)", "never"),
            (SEQUENCE[0], "once" if numbers else "weight 1"),
            (SEQUENCE[-1], f"{weight(most)} times" if numbers else f"weight {weight(most)}"),
        ],
        cut=_cut(columns, num_states, rows, num_actions, "action"),
        marked=found,
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


def are_numbers(weights: Iterable[float]) -> bool:
    """Whether the weights of visits are their numbers: nothing is forgotten."""
    return all(float(one).is_integer() for one in weights)


def transitions_in_words(seen: Sequence[float]) -> str:
    total = weight(sum(seen))
    return f"{total} transitions" if are_numbers(seen) else f"Transitions of weight {total}"


def weight(count: float) -> str:
    """1,234 or 1,234.5: a decimal only where it says something."""
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}" if count >= 0.1 else f"{count:.1g}"


def compact(count: float) -> str:
    """0.4, 12, 3.4k, 56k, 1.2M: four characters at most."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if round(count) >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count // size:.0f}{unit}"
    return f"{count:.0f}" if float(count).is_integer() or count >= 10 else f"{count:.1f}"
