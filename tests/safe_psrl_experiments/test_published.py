"""The published curves (paper, section 7), at their full length of 400,000 episodes."""

from statistics import fmean

import pytest

from safe_psrl_experiments.runs import Job, run_jobs

EPISODES = 400_000
pytestmark = pytest.mark.slow


def regrets(environment: str, seeds: int, episodes: int = EPISODES, **parameters: float) -> tuple[list[float], list[float]]:
    """Objective and constraint regret of each seed at the end."""
    jobs = [Job(environment, "safe-psrl", seed, episodes, parameters) for seed in range(1, seeds + 1)]
    ends = [record.rows[-1] for record in run_jobs(jobs, 2, lambda _: None)]
    assert [end["episode"] for end in ends] == [episodes] * seeds
    return [end["objective_regret"] for end in ends], [end["constraint_regret"] for end in ends]


def test_the_published_setting() -> None:
    objective, constraint = regrets("streaming-buffer", seeds=5)
    assert 5.1e4 <= fmean(objective) <= 6.0e4
    assert -1.15e5 <= fmean(constraint) <= -0.98e5


@pytest.mark.parametrize(
    ("coefficient", "objective_regret", "constraint_regret"),
    [(0.1, 1.202e5, -2.266e5), (0.25, 3.23e5, -5.88e5), (0.5, 6.857e5, -1.193e6), (1.0, 1.206e6, -2.000e6)],
)
def test_other_coefficients(coefficient: float, objective_regret: float, constraint_regret: float) -> None:
    objective, constraint = regrets("streaming-buffer", seeds=2, pessimism_coefficient=coefficient)
    assert fmean(objective) == pytest.approx(objective_regret, rel=0.05)
    assert fmean(constraint) == pytest.approx(constraint_regret, rel=0.05)


def test_the_inventory() -> None:
    objective, constraint = regrets("inventory", seeds=2, episodes=100_000)
    assert fmean(objective) == pytest.approx(3.06e4, rel=0.05)
    assert max(constraint) < 0


def test_the_factored_toy_learns_within_its_budget() -> None:
    """The average regret falls, and what is spent stays below the budget."""
    early, _ = regrets("factored-toy", seeds=2, episodes=10_000)
    late, constraint = regrets("factored-toy", seeds=2, episodes=100_000)
    assert 0 < fmean(late) / 100_000 < 0.5 * fmean(early) / 10_000
    assert max(constraint) < 0
