"""`safe-psrl agent explain`: why an agent plays an action."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Name, Target, connected, plain, print_json, say
from safe_psrl_console.number_text import estimate_text, number_text

if TYPE_CHECKING:
    from safe_psrl_client import Client
    from safe_psrl_proto.v1 import admin_pb2

LEAST_PROBABILITY = 0.0005  # shown as 0.1 %


def explain(
    name: Name,
    state: Annotated[str, typer.Option(metavar="S", show_default=False, help="The state: its number, or its name.")],
    step: Annotated[int, typer.Option(metavar="H", min=0, help="The step of the episode or epoch, from 0.")] = 0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Show why an agent plays an action: reward and cost to go of each action, visits, and the choice with other budgets.

    It explains the latest episode's policy. "To go" means from this step to the end of the episode, if the action is played now
    and the policy afterwards; mean and standard deviation under what was learned. In a continuing task the values are
    advantages: the long-run change if the action is played once and the policy afterwards.

    Example: safe-psrl agent explain buffer --state 4 --step 2
    """
    with connected(target) as client:
        place = _number_of(client, name, state)
        reply = client.explain_action(name, place, step)
    if as_json:
        print_json(plain(reply))
    else:
        _show(name, place, step, reply)


def _number_of(client: "Client", agent: str, state: str) -> int:
    if state.isdecimal():
        return int(state)
    names = list(client.get_agent(agent, with_spec=True).spec.cmdp.state_names)
    if state not in names:
        if not names:
            raise typer.BadParameter("the states of this agent have no names: give a number", param_hint="--state")
        close = get_close_matches(state, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give a name or a number from 0 to {len(names) - 1}"
        raise typer.BadParameter(f"no state is called {state!r}; {hint}", param_hint="--state")
    return names.index(state)


def _show(agent: str, place: int, step: int, reply: "admin_pb2.ExplainActionResponse") -> None:
    from safe_psrl_cli.tables import escape, print_table, table_of  # noqa: PLC0415

    labels = [one.name or f"action {one.action}" for one in reply.actions]
    played = {one.action: label for label, one in zip(labels, reply.actions, strict=True)}.get(reply.action, reply.action)
    where = f"state {place} ({reply.state_name})" if reply.state_name else f"state {place}"
    continuing = reply.HasField("averages")
    number = f"{'epoch' if continuing else 'episode'} {reply.episode:,}"
    plays = f"{number} plays" if reply.begun else f"{number}, not yet begun, would play"
    say(f"agent {agent}, {where}, step {step}: {plays} {played}")
    measure = "advantage" if continuing else "to go"
    table = table_of(None, "\naction", f"reward\n{measure}", f"cost\n{measure}", "\nvisits", "\nchosen")
    several = len(reply.constraint_names) != 1
    for label, one in zip(labels, reply.actions, strict=True):
        costs = [_deviating(cost) for cost in one.costs]
        chosen = f"{one.probability:.1%}"
        table.add_row(escape(label), _deviating(one.reward), "" if several else ", ".join(costs), f"{one.visits:,.6g}", chosen)
        for constraint, cost in zip(reply.constraint_names, costs, strict=False) if several else ():
            table.add_row(f"  {escape(constraint)}", "", cost)
    print_table(table)
    if continuing:
        averages = zip(("reward", *reply.constraint_names), (reply.averages.reward, *reply.averages.costs), strict=False)
        say(f"per step, on average: {', '.join(f'{name} {_deviating(value)}' for name, value in averages)}")
    for constraint, price in zip(reply.constraint_names, reply.cost_prices, strict=False):
        say(f"price of cost: {number_text(price, 4)} of reward for one unit of {constraint}")
    for choice in reply.budget_choices:
        say(f"next plan, {_budgets(choice.budget_factor)}: {_choice(labels, choice)}")


def _deviating(value: "admin_pb2.ValueToGo") -> str:
    return estimate_text(value.mean, value.sigma)


def _budgets(factor: float) -> str:
    change = round(100 * (factor - 1))
    return f"budgets {change:+d} %" if change else "budgets as they are"


def _choice(labels: list[str], choice: "admin_pb2.BudgetChoice") -> str:
    chosen = [(label, share) for label, share in zip(labels, choice.probabilities, strict=False) if share >= LEAST_PROBABILITY]
    return ", ".join(f"{label} {share:.1%}" for label, share in chosen)
