"""The dashboard of one agent: its constraint first, then how it learns."""

from typing import Final

from panels import (
    BUDGETS_OVER,
    GREEN,
    RED,
    SHARE_OF_BOUND,
    SHARE_OF_BUDGET,
    WORTH_A_LOOK,
    YELLOW,
    Json,
    Query,
    Row,
    over_time,
    stat,
)

AGENT: Final = 'agent="$agent"'
CONDITION: Final[list[Json]] = [
    {
        "type": "value",
        "options": {
            "0": {"text": "active", "color": GREEN, "index": 0},
            "1": {"text": "paused", "color": YELLOW, "index": 1},
            "2": {"text": "fallback acts", "color": YELLOW, "index": 2},
        },
    }
]


def of(metric: str) -> str:
    return f"safe_psrl_{metric}{{{AGENT}}}"


def lines(**legends: str) -> list[Query]:
    """A line for each metric, and for each constraint if it has them."""
    return [Query(of(metric), legend) for metric, legend in legends.items()]


def rows() -> list[Row]:
    return [holding(), constraint(), dual(), learning(), serving()]


def holding() -> Row:
    return Row(
        "Is the constraint of $agent holding, and how far is it from not holding?",
        5,
        [
            stat(
                "Budget used",
                "Reported costs of all completed episodes as a share of their budgets; with several constraints, the worst.",
                f"max(safe_psrl:budget_used:ratio{{{AGENT}}})",
                "percentunit",
                SHARE_OF_BUDGET,
                width=4,
                decimals=1,
            ),
            stat(
                "Budget used lately",
                "The same for the episodes completed in the last half hour.",
                f"max(safe_psrl:budget_used:ratio30m{{{AGENT}}})",
                "percentunit",
                SHARE_OF_BUDGET,
                width=4,
                decimals=1,
            ),
            stat(
                "Constraint regret, in budgets",
                "Reported costs less budgets, summed over completed episodes, in budgets of one episode; unspent below zero.",
                f"max({of('constraint_regret')} / {of('cost_budget')})",
                "none",
                BUDGETS_OVER,
                width=4,
                decimals=2,
            ),
            stat(
                "Regret against its bound",
                "Constraint regret as a share of the theorem's bound, which is a worst case.",
                f"max(safe_psrl:regret_bound_used:ratio{{{AGENT}}})",
                "percentunit",
                SHARE_OF_BOUND,
                width=3,
                decimals=1,
            ),
            stat(
                "Plan against the budget",
                "Expected cost of the current plan as a share of the budget. Plans aim below it, by the pessimism.",
                f"max({of('predicted_cost')} / {of('cost_budget')})",
                "percentunit",
                ((1.0, YELLOW), (1.2, RED)),
                width=3,
                decimals=1,
            ),
            stat(
                "Condition",
                "Whether it acts and learns, is paused, or is paused and its fallback policy acts.",
                f"max({of('paused')} + {of('fallback_active')})",
                "none",
                WORTH_A_LOOK,
                mappings=CONDITION,
                width=3,
            ),
            stat(
                "Since the last transition",
                "A long time is normal for an idle agent. With an open episode, the client is missing.",
                f"time() - max({of('last_transition_timestamp_seconds')})",
                "s",
                ((300.0, YELLOW), (600.0, RED)),
                width=3,
                decimals=0,
            ),
        ],
    )


def constraint() -> Row:
    return Row(
        "Constraint",
        10,
        [
            over_time(
                "Cost of an episode",
                "Reported, last, mean of all and of the latest 100; what the plan expects, and at most expects (certified); "
                "the budget; and what plans aim at, the budget less pessimism.",
                [
                    *lines(
                        episode_cost="last {{constraint}}",
                        episode_cost_mean="mean {{constraint}}",
                        episode_cost_recent="recent {{constraint}}",
                        predicted_cost="planned {{constraint}}",
                        certified_cost="certified {{constraint}}",
                        cost_budget="budget {{constraint}}",
                        satisfiable_cost="satisfiable {{constraint}}",
                    ),
                    Query(f"clamp_min({of('cost_budget')} - {of('pessimism')}, 0)", "aim {{constraint}}"),
                ],
                width=9,
            ),
            over_time(
                "Constraint regret",
                "Reported costs less budgets, summed over completed episodes, and the maximum. Above zero: violated. Strong "
                "violation: the sum of the positive parts only.",
                lines(
                    constraint_regret="now {{constraint}}",
                    constraint_regret_max="greatest {{constraint}}",
                    strong_violation="strong violation {{constraint}}",
                ),
                "none",
                ((0.0, RED),),
                width=9,
            ),
            over_time(
                "Episodes above the budget",
                "Share of the completed episodes that cost more than the budget. The guarantee is on the sum: some are normal.",
                [
                    Query(
                        f"{of('constraint_violations')} / ignoring (constraint) group_left () "
                        f"clamp_min({of('completed_episodes')}, 1)",
                        "{{constraint}}",
                    )
                ],
                "percentunit",
                width=6,
            ),
        ],
    )


def dual() -> Row:
    return Row(
        "Dual variable and pessimism",
        8,
        [
            over_time(
                "Dual variable",
                "Rises by the expected cost above the tightened budget, and falls by that below it. Zero is fine.",
                lines(dual_variable="{{constraint}}"),
            ),
            over_time(
                "Bounds",
                "The theorem's bounds on the dual variable and the constraint regret: worst cases.",
                lines(dual_variable_bound="dual variable {{constraint}}", constraint_regret_bound="regret {{constraint}}"),
            ),
            over_time(
                "Pessimism and cost price",
                "The amount by which the budget is tightened, and the reward that a unit of cost is worth.",
                lines(pessimism="pessimism {{constraint}}", cost_price="price {{constraint}}"),
            ),
        ],
    )


def learning() -> Row:
    return Row(
        "Learning",
        8,
        [
            over_time(
                "Reward of an episode",
                "Reward of the last completed episode, and the plan's expectation.",
                lines(episode_reward="last", predicted_reward="planned"),
                width=6,
            ),
            over_time(
                "Mean reward",
                "Of all completed episodes.",
                [Query(f"{of('cumulative_reward')} / clamp_min({of('completed_episodes')}, 1)", "mean")],
                width=6,
            ),
            over_time(
                "Episodes",
                "Started and completed.",
                lines(episode_index="started", completed_episodes="completed"),
                width=6,
            ),
            over_time(
                "Known",
                "Share of the available state-action pairs visited at least once.",
                lines(posterior_visited_ratio="visited"),
                "percentunit",
                width=6,
            ),
            over_time(
                "Drift",
                "How much the latest transitions contradict what was learned; at the limit, drift is detected.",
                lines(drift_statistic="statistic", drift_alarm="limit", drift_detections="detections"),
                width=12,
            ),
            over_time(
                "Definition",
                "Version of the definition; each step is an update.",
                lines(definition_version="version"),
                width=12,
            ),
        ],
    )


def serving() -> Row:
    return Row(
        "Serving",
        8,
        [
            over_time(
                "Transitions",
                "Learned each second.",
                [Query(f"rate({of('observed_transitions')}[$__rate_interval])", "transitions")],
                "ops",
            ),
            over_time(
                "Overridden",
                "Share of the transitions with another action than the proposed one. The guarantee does not cover them.",
                [Query(f"{of('overridden_actions')} / clamp_min({of('observed_transitions')}, 1)", "overridden")],
                "percentunit",
            ),
            over_time("Open episodes", "Begun and not yet ended.", lines(open_episodes="open")),
            over_time(
                "Time for the latest plan",
                "Clients wait this long when they start an episode.",
                lines(plan_seconds="plan"),
                "s",
            ),
            over_time(
                "Events behind the snapshot",
                "What a start would read again.",
                lines(snapshot_lag_events="events"),
            ),
            over_time(
                "Age of the snapshot",
                "Zero while nothing is newer.",
                lines(snapshot_age_seconds="age"),
                "s",
                ((600.0, YELLOW), (900.0, RED)),
            ),
            stat("Age", "Since the agent was created.", f"time() - max({of('created_timestamp_seconds')})", "s", decimals=0),
        ],
    )
