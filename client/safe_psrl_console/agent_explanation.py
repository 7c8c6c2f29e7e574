"""Why an agent plays an action: below the policy, for the cell that was clicked."""

from safe_psrl_client import AsyncClient, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.controls import Text, block
from safe_psrl_console.grids import Names, weight
from safe_psrl_console.number_text import estimate_text, number_text
from safe_psrl_proto.v1 import admin_pb2


class ExplanationTable:
    """Requested for one state and step at a time, as it takes the service several plans."""

    def __init__(self, client: AsyncClient, agent: str) -> None:
        self._client, self._agent = client, agent
        with block("div", data_testid="explanation") as self._place:
            self._title = Text("p", "")
            self._table = block("table", "previews")
            self._budgets = block("ul")
        self._place.set_visibility(False)

    async def explain(self, state: int, step: int, names: Names) -> None:
        self._place.set_visibility(True)
        self._table.clear()
        self._budgets.clear()
        where = f"{names.state(state)}, step {step}"
        self._title.set_text(f"Explaining {where} …")
        try:
            found = await self._client.explain_action(self._agent, state, step)
        except SafePsrlClientError as error:
            self._title.set_text(f"The explanation failed: {visible(str(error))}")
            return
        continuing, plays = found.HasField("averages"), "plays" if found.begun else "would play"
        unit, meaning = ("epoch", "Advantages over the policy") if continuing else ("episode", "To go")
        text = f"In {where}, {unit} {found.episode:,} {plays} {names.action(found.action)}. {meaning}, as learned:"
        self._title.set_text(text)
        with self._table:
            for tag, *cells in explanation_rows(found, names):
                with block("tr"):
                    for cell in cells:
                        Text(tag, cell)
        with self._budgets:
            for line in budget_lines(found, names):
                Text("li", line)


def explanation_rows(found: admin_pb2.ExplainActionResponse, names: Names) -> list[tuple[str, ...]]:
    """Rows of the table, each with the tag of its cells."""
    costs = [f"cost of {visible(name)}" for name in found.constraint_names]
    rows: list[tuple[str, ...]] = [("th", "Action", "reward", *costs, "visits", "chosen")]
    for one in found.actions:
        values = [estimate_text(value.mean, value.sigma) for value in (one.reward, *one.costs)]
        rows.append(("td", names.action(one.action), *values, weight(one.visits), f"{one.probability:.1%}"))
    return rows


def budget_lines(found: admin_pb2.ExplainActionResponse, names: Names) -> list[str]:
    """What the next plan would choose with other budgets, and what a unit of cost is worth."""
    lines = [
        f"Price of cost: {number_text(price, 4)} of reward for one unit of {visible(name)}."
        for name, price in zip(found.constraint_names, found.cost_prices, strict=False)
    ]
    for choice in found.budget_choices:
        change = round(100 * (choice.budget_factor - 1))
        chances = zip(found.actions, choice.probabilities, strict=False)
        chosen = ", ".join(f"{names.action(one.action)} {share:.0%}" for one, share in chances if share >= 0.005)
        lines.append(f"Next plan, {f'budgets {change:+d} %' if change else 'budgets as they are'}: {chosen}.")
    return lines
