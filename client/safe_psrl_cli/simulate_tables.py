"""The results of `safe-psrl simulate` as tables."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from safe_psrl_cli.tables import add_rows, table_of


def show_environment(summary: dict[str, Any]) -> None:
    """A row for each agent."""
    title = (
        f"{summary['environment']}: {summary['episodes']:,} episodes in {summary['seconds']:.1f} s "
        f"({summary['episodes_per_second']:,.0f}/s), mode {summary['mode']}"
    )
    numbers = ("\nepisodes", "mean\nreward", f"{summary['regret']}\nregret", "mean\ncost", "\nbudget", "over\nbudget")
    table = table_of(escape(title), "\nagent", *numbers, "dual\nvariable")
    for row in summary["agents"]:
        about = [escape(row["agent"]), f"{row['episodes']:,}", f"{row['mean_reward']:.4f}", f"{row['objective_regret']:,.1f}"]
        add_rows(table, about, [(constraint["name"], _cells(constraint)) for constraint in row["constraints"]])
    console = Console()
    console.print(table)
    optimum = summary["agents"][0]["optimum"]
    costs = ", ".join(f"{cost:.6f}" for cost in optimum["costs"])
    console.print(f"Exact optimum: reward {optimum['reward']:.6f} at cost {costs}.", highlight=False, soft_wrap=True)
    meaning = {
        "exact": "Regret is exact: the value of each episode's policy on the true kernel, against the optimum.",
        "realised": "Regret is realised: the rewards of the episodes, against the optimum; --mode local reports it exactly.",
    }
    console.print(meaning[summary["regret"]], highlight=False)


def _cells(constraint: dict[str, Any]) -> list[str]:
    dual = constraint["dual_variable"]
    return [
        f"{constraint['mean_cost']:.4f}",
        f"{constraint['cost_budget']:.4g}",
        f"{constraint['violations']:,}",
        "?" if dual is None else f"{dual:,.2f}",
    ]


def show_lte_cell(summary: dict[str, Any]) -> None:
    _show_policies(
        f"LTE cell, {summary['ues']} UEs, {len(summary['agents'])} agents: {summary['simulated_seconds']:,.0f} s of network "
        f"in {summary['seconds']:,.0f} s",
        summary,
    )
    moves = list(summary["kernel"][0]["cell"])
    table = table_of("How the network moved the buffers | the paper's kernel", "service, buffer", "seen", *moves)
    for row in summary["kernel"]:
        cells = [f"{row['cell'][move]:.2f} | {row['paper'][move]:.2f}" for move in moves]
        table.add_row(f"{row['service']}, {row['buffer']}", f"{row['seen']:,}", *cells)
    Console().print(table)


def show_base_stations(summary: dict[str, Any]) -> None:
    _show_policies(
        f"{summary['cells']} cells, {summary['devices']} devices, {summary['agents']} agents: {summary['steps']:,} steps in "
        f"{summary['seconds']:.1f} s ({summary['steps_per_second']:,.0f}/s), {summary['handovers']:,} handovers",
        summary,
    )
    table = table_of("Learned, by class of device", "class", "devices", "stalls of 10 epochs", "cost")
    for name, row in summary["classes"].items():
        table.add_row(name, f"{row['devices']:,}", f"{row['stalls']:.2f}", f"{row['cost']:.2f}")
    Console().print(table)


def _show_policies(title: str, summary: dict[str, Any]) -> None:
    """A row for each policy, and the best fixed rule that keeps the budget."""
    numbers = ("\nepisodes", "stalls of\n10 epochs", "\ncost", "\nbudget", "constraint\nregret", "its\nmost")
    table = table_of(None, "\npolicy", *numbers, fold=False)
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
    console = Console(highlight=False)
    console.print(title)
    console.print(table)
    console.print("Means over players and episodes. Constraint regret: the sum of cost less budget, of the worst player.")
    best = summary["best_fixed_within_budget"]
    if best is not None:
        learned, fixed = summary["policies"]["learned"], summary["policies"][best]
        console.print(
            f"The best fixed rule within the budget is {best}: {fixed['stalls']:.2f} stalls against "
            f"{learned['stalls']:.2f} learned ({learned['stalls_last_half']:.2f} in the last half)."
        )
    console.print(
        f"Over all episodes of one agent, constraint regret is at most {summary['agents_constraint_regret']:,.0f} now, "
        f"and was at most {summary['agents_constraint_regret_max']:,.0f}."
    )
