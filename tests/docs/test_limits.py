"""The page on security has every limit with its default."""

import re

import pytest

from safe_psrl_server.config import Limits, Quotas
from tests.docs.markdown import ROOT

ROW = re.compile(r"^\| `(\w+\.\w+)` \| ([\d,.]+) \| \S.* \|$", re.MULTILINE)
DEFAULTS = {
    f"{section}.{name}": field.default
    for section, kind in (("limits", Limits), ("quotas", Quotas))
    for name, field in kind.model_fields.items()
}


@pytest.fixture(scope="module")
def rows() -> dict[str, float]:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    return {name: float(value.replace(",", "")) for name, value in ROW.findall(text)}


def test_the_table_has_every_limit_and_no_other(rows: dict[str, float]) -> None:
    assert set(rows) == set(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_table_has_the_default(rows: dict[str, float], name: str) -> None:
    assert rows[name] == DEFAULTS[name]
