"""Agents of one problem share the tables that are derived from it."""

import gc
import weakref

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import completed, definition_of
from tests.safe_psrl_server.specs import make_spec


def test_equal_problems_are_built_once() -> None:
    """Seeds differ all the same; other options or another problem are something else."""
    one, two = (definition_of(completed(make_spec(seed=seed), 60.0)) for seed in (1, 2))
    assert one.spec is two.spec
    assert one.learner.problem is two.learner.problem
    assert (one.learner.seed, two.learner.seed) == (1, 2)
    others = (
        make_spec(options=model_pb2.SafePsrlOptions(confidence=0.9)),
        make_spec(horizon=4),
        make_spec(learned=True),
    )
    for other in others:
        assert definition_of(completed(other, 60.0)).learner.problem is not one.learner.problem


def test_what_no_agent_shares_any_more_is_released() -> None:
    definition = definition_of(completed(make_spec(horizon=7), 60.0))
    spec = weakref.ref(definition.spec)
    del definition
    gc.collect()
    assert spec() is None
