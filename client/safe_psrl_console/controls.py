"""Plain HTML elements, which keyboards and screen readers support, instead of a toolkit's."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from safe_psrl_console.budget_status import BudgetStatus


class Text(TextElement):
    """An element with text: `Text("h2", "Events")`."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)


def block(tag: str, classes: str = "", **props: str) -> Element:
    """A container element. `aria_label` is the attribute `aria-label`."""
    element = Element(tag).classes(classes)
    element.props.update({name.replace("_", "-"): value for name, value in props.items()})
    return element


def button(text: str, pressed: Callable[[], Any], classes: str = "button") -> Text:
    element = Text("button", text, classes)
    element.props["type"] = "button"
    element.on("click", lambda _: pressed())
    return element


class Choice:
    """A choice of one option, as a group of toggle buttons."""

    def __init__(self, label: str, options: Sequence[str], chosen: Callable[[int], None]) -> None:
        self._chosen = chosen
        with block("div", "chips", role="group", aria_label=label):
            self._buttons = [button(option, partial(self._choose, i), "chip") for i, option in enumerate(options)]
        self._mark(0)

    def _choose(self, i: int) -> None:
        self._mark(i)
        self._chosen(i)

    def _mark(self, chosen: int) -> None:
        for i, one in enumerate(self._buttons):
            one.props["aria-pressed"] = "true" if i == chosen else "false"
            one.update()


class Gauge:
    """Cost against budget: a bar with a mark at the budget, figures and a sign, so that nothing depends on colour alone."""

    SCALE: Final = 1.2  # the bar's end, as a share of the budget
    SIGNS: Final = {"over": "✕ over budget", "near": "! near budget", "within": "✓ within budget", "unknown": "too early"}

    def __init__(self) -> None:
        with block("div", "gauge") as self._root:
            with block("div", "track"):
                self._bar = block("i")
                block("s")
            with block("span", "figures"):
                self._cost = Text("b")
                self._budget = Text("span")
                self._sign = Text("em")

    def show(self, status: BudgetStatus) -> None:
        level, share = status.level, status.share if status.known else 0.0
        self._root.classes(replace=f"gauge is-{level}")
        self._bar.style(replace=f"width: {100 * min(max(share, 0) / self.SCALE, 1):.1f}%")
        self._cost.set_text(f"{status.cost:.3f}" if status.known else "")
        self._budget.set_text(f"of {status.budget:.4g} per episode" if status.known else "")
        self._sign.set_text(f"{self.SIGNS[level]}, {percent(share)}" if status.known else self.SIGNS[level])


def percent(share: float) -> str:
    """99.7 % is not 100 %."""
    return f"{100 * share:.1f} %" if abs(share - 1) < 0.01 else f"{100 * share:.0f} %"
