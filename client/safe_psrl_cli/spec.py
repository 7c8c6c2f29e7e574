"""`safe-psrl spec`: show and check specifications."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.connection import say

if TYPE_CHECKING:
    from safe_psrl_testbed import Scenario

app = typer.Typer(
    help="""Show and check problem specifications.

    Example: safe-psrl spec show streaming-buffer > mine.toml
    """,
    no_args_is_help=True,
)
Environment = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        show_default=False,
        help="streaming-buffer, inventory, factored-toy, random:…, or a .toml or .json file.",
    ),
]


@app.command("show")
def show(
    environment: Environment,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of TOML.")] = False,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Include the true kernel, so that the file can be simulated.")
    ] = False,
) -> None:
    """Print a specification as a document that can be edited and used as input.

    Example: safe-psrl spec show streaming-buffer --transitions > mine.toml
    """
    from safe_psrl.problem.documents import spec_to_document, write_document  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    scenario = scenario_named(environment)
    document = spec_to_document(scenario.spec)
    if transitions:
        kernel = scenario.transitions_for(1)
        constraints = document.pop("constraints")  # tables come last in TOML
        document |= {"transitions": (kernel if len(kernel) > 1 else kernel[0]).tolist(), "constraints": constraints}
    typer.echo(write_document(document, "json" if as_json else "toml"), nl=False)


@app.command("check")
def check(
    environment: Environment, as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False
) -> None:
    """Check a specification, and report the theorem's bounds and the exact optimum.

    Example: safe-psrl spec check mine.toml
    """
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    findings = _findings(scenario_named(environment))
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
        return
    say("{name}: {num_states} states, {num_actions} actions, horizon {horizon}: correct".format(**findings))
    for constraint in findings["constraints"]:
        say("  {name}: cost budget {cost_budget:g}, satisfiable cost {satisfiable_cost:g}".format(**constraint))
        typer.echo(
            "    by the theorem, feasible with its pessimism from episode {feasibility_episode:,.0f} on (C''), "
            "expected dual variable then below {dual_variable_bound:.3g}".format(**constraint)
        )
    optimum = findings["optimum"]
    if optimum is None:
        typer.echo("  no kernel: an experiment draws one from the prior for each seed")
    else:
        costs = ", ".join(f"{cost:.6f}" for cost in optimum["costs"])
        typer.echo(f"  exact optimum: reward {optimum['reward']:.6f} at cost {costs}")


def _findings(scenario: "Scenario") -> dict[str, Any]:
    from safe_psrl import dual_variable_bound, exact_optimum, feasibility_episode  # noqa: PLC0415

    spec = scenario.spec
    constraints = []
    for i, name in enumerate(spec.constraint_names):
        first = feasibility_episode(spec, i)
        constraints.append(
            {
                "name": name,
                "cost_budget": float(spec.cost_budgets[i]),
                "satisfiable_cost": float(spec.satisfiable_costs[i]),
                "feasibility_episode": first,
                "dual_variable_bound": dual_variable_bound(spec, int(first), i),
            }
        )
    optimum = None if scenario.transitions is None else exact_optimum(spec, scenario.transitions)
    return {
        "name": scenario.name,
        "num_states": spec.num_states,
        "num_actions": spec.num_actions,
        "horizon": spec.horizon,
        "constraints": constraints,
        "optimum": optimum and {"reward": optimum.reward, "costs": optimum.costs.tolist()},
    }
