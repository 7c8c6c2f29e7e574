"""The problems of the paper and its code, to the values that independent calculation gave."""

import numpy as np
import pytest

from safe_psrl import exact_optimum, preset
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.kernels import KERNELS, factored_toy, inventory, streaming_buffer
from tests.safe_psrl.cases import planned

FAST, SLOW = 0, 1


def value_of(name: str, policy: np.ndarray) -> np.ndarray:
    """[1+M]: the values of a deterministic policy [H, S] from the start."""
    spec, p = preset(name), scenario_named(name).transitions_for(1)
    values = np.empty((2, spec.num_states))
    evaluate_policy(p, spec.next_states, spec.signals, policy.astype(np.int32), values)
    return values @ spec.initial_distribution


@pytest.mark.parametrize("name", list(KERNELS))
def test_every_row_of_a_kernel_is_a_distribution(name: str) -> None:
    p = KERNELS[name]()
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=-1), 1.0, rtol=0, atol=1e-15)


def test_the_streaming_buffer_is_the_papers() -> None:
    spec = preset("streaming-buffer")
    assert (spec.num_states, spec.num_actions, spec.horizon) == (10, 2, 10)
    assert (spec.cost_budgets[0], spec.satisfiable_costs[0]) == (5.0, 1.0)
    assert spec.initial_distribution.argmax() == 0
    assert (spec.dirichlet_prior == 0.1).all()
    np.testing.assert_array_equal(spec.signals[0, 0], np.repeat([[0, 0], [1, 1]], [1, 9], axis=0))
    np.testing.assert_array_equal(spec.signals[1, 0], [[1, 0]] * 10)


def test_the_streaming_buffer_moves_by_arrivals_less_departures() -> None:
    p = streaming_buffer()
    for s in range(1, 9):
        for action, arrival in ((FAST, 0.9), (SLOW, 0.1)):
            up, down = arrival * 0.2, (1 - arrival) * 0.8
            expected = np.zeros(10)
            expected[[s - 1, s, s + 1]] = down, 1 - up - down, up
            np.testing.assert_allclose(p[s, action], expected, atol=1e-15)


def test_the_streaming_buffer_is_clipped_at_both_ends() -> None:
    p = streaming_buffer()
    np.testing.assert_allclose(p[0, FAST, :2], [1 - 0.9 * 0.2, 0.9 * 0.2], atol=1e-15)
    np.testing.assert_allclose(p[9, SLOW, 8:], [0.9 * 0.8, 1 - 0.9 * 0.8], atol=1e-15)


def test_the_streaming_buffers_exact_values() -> None:
    """Without a linear program; tests of the optimum have the values at tau and c0."""
    slow = np.full((10, 10), SLOW)
    assert 10 - value_of("streaming-buffer", slow)[0] == pytest.approx(9.761901, abs=5e-7)
    spec = preset("streaming-buffer")
    _, values = planned(spec, streaming_buffer()[None], [1.0, 0.0])
    assert 10 - values[0] @ spec.initial_distribution == pytest.approx(5.393138, abs=5e-7)


def test_the_inventory_allows_orders_up_to_its_capacity() -> None:
    spec = preset("inventory")
    assert (spec.num_states, spec.num_actions, spec.horizon) == (6, 6, 7)
    assert (spec.cost_budgets[0], spec.satisfiable_costs[0]) == (3.5, 0.7)
    for stock in range(6):
        np.testing.assert_array_equal(np.flatnonzero(spec.available_actions[stock]), np.arange(6 - stock))


@pytest.mark.parametrize(("stock", "order"), [(0, 0), (0, 5), (2, 1), (5, 0)])
def test_the_inventory_by_hand(stock: int, order: int) -> None:
    """Transitions, reward and cost of a pair from the list of demands alone."""
    spec, p = preset("inventory"), inventory()
    after = np.zeros(6)
    for demand, probability in enumerate((0.3, 0.2, 0.2, 0.2, 0.05, 0.05)):
        after[max(0, stock + order - demand)] += probability
    np.testing.assert_allclose(p[stock, order], after, atol=1e-15)
    sales = sum(after[stock + order - d] * 0.08 * d / 0.132 for d in range(stock + order + 1))
    assert spec.signals[0, 0, stock, order] == pytest.approx(sales, abs=1e-15)
    paid = (4 + 2 * order if order else 0) + stock + order
    assert spec.signals[1, 0, stock, order] == pytest.approx(paid / 19, abs=1e-15)


def test_the_factored_toy_is_deterministic() -> None:
    p = factored_toy()
    assert set(np.unique(p)) == {0.0, 1.0}
    for s in range(3):
        assert p[s, 0].argmax() == s
        assert p[s, 1].argmax() == (s + 1) % 3


def test_the_factored_toys_exact_values() -> None:
    spec = preset("factored-toy")
    np.testing.assert_allclose(spec.signals[0, 0], [[0, 1 / 3], [0, 2 / 3], [0, 1]])
    np.testing.assert_array_equal(spec.signals[1, 0], [[0, 1]] * 3)
    optimum = exact_optimum(spec, factored_toy())
    assert optimum.reward == pytest.approx(2.0, abs=1e-12)  # three moves, once round the ring
    assert optimum.costs[0] == pytest.approx(3.0, abs=1e-12)
    np.testing.assert_allclose(value_of("factored-toy", np.ones((6, 3))), [4.0, 6.0])
