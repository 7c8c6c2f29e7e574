"""What a run writes down, and when: rows at log-spaced episodes."""

from dataclasses import dataclass

import numpy as np

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_experiments.algorithms import Run

ROWS_PER_RUN = 200
PER_CONSTRAINT = ("constraint_regret", "constraint_regret_max", "dual_variable", "pessimism")


@dataclass(frozen=True)
class RunRecord:
    """One algorithm with one seed: what it wrote down, how long it took, and the optimum that it is measured against."""

    algorithm: str
    seed: int
    rows: list[dict[str, float]]  # by column, beginning with "episode"
    seconds: float
    optimum_reward: float
    optimum_costs: list[float]
    finished: bool

    @property
    def episodes(self) -> int:
        return int(self.rows[-1]["episode"]) if self.rows else 0


def recorded_episodes(episodes: int) -> list[int]:
    """About `ROWS_PER_RUN` episodes from 1 to `episodes`, evenly spaced in their logarithm."""
    spaced = np.geomspace(1, episodes, min(ROWS_PER_RUN, episodes))
    return sorted({*np.rint(spaced).astype(int).tolist(), episodes})


def columns(spec: CmdpSpec) -> list[str]:
    """The columns of a row; with several constraints, those about one carry its name."""
    regret, regret_max, dual, pessimism = (per_constraint(spec, column) for column in PER_CONSTRAINT)
    return ["episode", "objective_regret", *regret, *regret_max, "violating_episodes", *dual, *pessimism]


def per_constraint(spec: CmdpSpec, column: str) -> list[str]:
    names = spec.constraint_names
    return [column] if len(names) == 1 else [f"{column}.{name}" for name in names]


def row_of(spec: CmdpSpec, run: Run) -> dict[str, float]:
    ledger = run.ledger
    values = [
        run.episode,
        float(ledger.objective_regret[0]),
        *ledger.constraint_regret.tolist(),
        *ledger.constraint_regret_max.tolist(),
        int(ledger.violating_episodes[0]),
        *run.dual_variables.tolist(),
        *run.pessimism.tolist(),
    ]
    return dict(zip(columns(spec), values, strict=True))
