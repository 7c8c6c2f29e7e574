"""`safe-psrl spec`: specifications to start from, and a check of one's own."""

from typing import Annotated

import typer

app = typer.Typer(help="Show and check problem specifications.", no_args_is_help=True)


@app.command("show")
def show(
    environment: Annotated[str, typer.Argument(help="A preset's name, random:…, or a specification file.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of TOML.")] = False,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="With the true kernel, so that the file can be simulated.")
    ] = False,
) -> None:
    """Print a specification as a document that can be edited and given back.

    Example: safe-psrl spec show streaming-buffer --transitions > mine.toml
    """
    from safe_psrl.documents import spec_to_document, write_document  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    scenario = scenario_named(environment)
    document = spec_to_document(scenario.spec)
    if transitions:
        kernel = scenario.transitions_for(1)
        constraints = document.pop("constraints")  # tables come last in TOML
        document |= {"transitions": (kernel if len(kernel) > 1 else kernel[0]).tolist(), "constraints": constraints}
    typer.echo(write_document(document, "json" if as_json else "toml"), nl=False)


@app.command("check")
def check(environment: Annotated[str, typer.Argument(help="A specification file, or a name.")]) -> None:
    """Check a specification, and say what the theory and the exact optimum have to say about it."""
    from safe_psrl import dual_variable_bound, exact_optimum, feasibility_episode  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    scenario = scenario_named(environment)
    spec = scenario.spec
    typer.echo(f"{scenario.name}: {spec.num_states} states, {spec.num_actions} actions, horizon {spec.horizon}: correct")
    for i, name in enumerate(spec.constraint_names):
        tau, c0 = spec.cost_budgets[i], spec.satisfiable_costs[i]
        first, bound = feasibility_episode(spec, i), dual_variable_bound(spec, 1, i)
        typer.echo(
            f"  {name}: cost budget {tau:g}, satisfiable cost {c0:g}; C'' = {first:,.0f}, dual variable below {bound:.4g}"
        )
    if scenario.transitions is not None:
        optimum = exact_optimum(spec, scenario.transitions)
        costs = ", ".join(f"{cost:.6f}" for cost in optimum.costs)
        typer.echo(f"  exact optimum: reward {optimum.reward:.6f} at cost {costs}")
