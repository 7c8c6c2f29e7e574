"""The compared systems on the streaming buffer at the length of the published curves, against independent recalculations."""

from statistics import fmean

import pytest

from safe_psrl_experiments.runs import Job, run_job

EPISODES = 400_000
pytestmark = pytest.mark.slow


def regrets(algorithm: str, seeds: int = 1, episodes: int = EPISODES, **parameters: float) -> tuple[float, float, float]:
    """Objective and constraint regret and episodes above the budget at the end, means over the seeds."""
    jobs = [Job("streaming-buffer", algorithm, seed, episodes, parameters) for seed in range(1, seeds + 1)]
    ends = [run_job(job, lambda _: None, lambda: False).rows[-1] for job in jobs]
    assert [end["episode"] for end in ends] == [episodes] * seeds
    objective, constraint, above = (
        fmean(end[column] for end in ends) for column in ("objective_regret", "constraint_regret", "violating_episodes")
    )
    return objective, constraint, above


def test_optcmdp_within_the_noise_of_its_seeds() -> None:
    """Seeds 1 to 8 have objective regrets of 1.0e4 to 1.2e4 and 1,200 to 1,800 episodes above the budget; one is run here."""
    objective, constraint, above = regrets("optcmdp")
    assert 0.9e4 <= objective <= 1.35e4
    assert -2.5e4 <= constraint <= -1.6e4
    assert 1_000 <= above <= 2_000


@pytest.mark.parametrize(
    ("algorithm", "parameters", "objective_regret", "constraint_regret"),
    [
        ("dope", {}, 1.095e6, -1.845e6),  # published 1.09e6 and -1.84e6
        ("optpess-lp", {}, 8.947e5, -1.600e6),  # it never leaves its safe policy
        ("optpess-primaldual", {"seeds": 2, "pessimism_coefficient": 0.07}, 1.880e5, 2.688e5),  # published .187e6 and +.27e6
        ("psrl", {}, -5.41e5, 1.93e6),  # it knows no budget
        ("safe-baseline", {}, 8.947e5, -1.600e6),
    ],
)
def test_regrets_within_5_percent(
    algorithm: str, parameters: dict[str, float], objective_regret: float, constraint_regret: float
) -> None:
    objective, constraint, above = regrets(algorithm, **parameters)
    assert objective == pytest.approx(objective_regret, rel=0.05)
    assert constraint == pytest.approx(constraint_regret, rel=0.05)
    assert algorithm != "dope" or above == 0, "it pays its regret for never exceeding the budget"


def test_optpess_primaldual_where_its_violations_have_just_been_paid_back() -> None:
    """Coefficient 0.1: what is left of a peak of 1.4e5, a tenth of it, moves by more than 5 % of itself between seeds."""
    objective, constraint, _ = regrets("optpess-primaldual", seeds=2, pessimism_coefficient=0.1)
    assert objective == pytest.approx(3.008e5, rel=0.05)
    assert constraint == pytest.approx(1.76e4, abs=0.05 * 1.4e5)


def test_cmdp_psrl_is_small_against_all_others() -> None:
    """No pessimism: regrets of hundreds either way, where the published setting of Safe PSRL has 26,600 by then."""
    objective, constraint, above = regrets("cmdp-psrl", seeds=2, episodes=100_000)
    assert abs(objective) < 1_000
    assert abs(constraint) < 2_000
    assert above > 5_000
