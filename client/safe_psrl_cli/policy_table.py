"""What was learned beside fixed rules, for people to read, at 80 columns."""

from typing import Any

from rich.console import Console

from safe_psrl_cli.agent_tables import table_of


def show_policies(console: Console, summary: dict[str, Any]) -> None:
    """A row for each policy, and which fixed rule is the best that keeps the budget."""
    table = table_of(
        None, "\npolicy", "\nepisodes", "stalls of\n10 epochs", "\ncost", "\nbudget", "constraint\nregret", "its\nmost"
    )
    for name, policy in summary["policies"].items():
        table.add_row(
            name,
            f"{policy['episodes']:,}",
            f"{policy['stalls']:.2f}",
            f"{policy['cost']:.2f}",
            f"{summary['cost_budget']:.4g}" if policy["keeps_budget"] else "broken",
            f"{policy['constraint_regret']:,.0f}",
            f"{policy['constraint_regret_max']:,.0f}",
        )
    table.columns[0].no_wrap = True
    console.print(table)
    meaning = (
        "Means over players and episodes. Constraint regret: cost above the budget, summed over episodes, of the worst player."
    )
    console.print(meaning, highlight=False)
    best = summary["best_fixed_within_budget"]
    if best is not None:
        learned, fixed = summary["policies"]["learned"], summary["policies"][best]
        console.print(
            f"The best fixed rule within the budget is {best}: {fixed['stalls']:.2f} stalls against "
            f"{learned['stalls']:.2f} learned ({learned['stalls_last_half']:.2f} in the last half).",
            highlight=False,
        )
