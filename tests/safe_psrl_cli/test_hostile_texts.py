"""What a service says cannot control the operator's terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from safe_psrl_client.visible_text import visible
from tests.safe_psrl_cli.hostile_service import HARMFUL, IN_ONE_LINE, RAW, SHOWN, hostile_service

BIN = Path(sys.executable).parent / "safe-psrl"


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with hostile_service() as address:
        yield address


def run(target: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [BIN, *arguments, "--target", target]
    bytes_of = subprocess.run(command, capture_output=True, check=False, timeout=60, env=os.environ | {"COLUMNS": "400"})
    ended = subprocess.CompletedProcess(command, bytes_of.returncode, bytes_of.stdout.decode(), bytes_of.stderr.decode())
    for output in (ended.stdout, ended.stderr):
        assert not HARMFUL & set(output), ascii(output)
        assert "\nforged" not in output
    return ended


def test_a_table_shows_them_as_escapes(target: str) -> None:
    listed = run(target, "agent", "list").stdout
    assert listed.count(SHOWN) == 1 + 4  # a name, and two constraints of each agent


def test_an_agent_is_shown_with_them_as_escapes(target: str) -> None:
    shown = run(target, "agent", "show", "a").stdout
    for line in (
        f"agent           {SHOWN}",
        f"condition       active ({SHOWN})",
        f"constraint      {SHOWN}1",
        f"state digest    {SHOWN}",
    ):
        assert line in shown.splitlines()


def test_a_difference_is_one_line(target: str) -> None:
    verified = run(target, "agent", "verify", "a")
    assert verified.returncode == 1
    assert verified.stdout.startswith(f"a: DIFFERS: {SHOWN} (1 events read")
    assert verified.stdout.count("\n") == 1


def test_an_explanation_shows_them_as_escapes(target: str) -> None:
    """Whatever lists a service sends, the command does not fail."""
    explained = run(target, "agent", "explain", "a", "--state", "0")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout.startswith(f"agent a, state 0 ({SHOWN}), step 0:")
    assert explained.stdout.count(SHOWN) == 1 + 1 + 2 + 1  # the state, an action, two prices, a choice


def test_an_error_is_one_line(target: str) -> None:
    ended = run(target, "agent", "pause", "a")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"safe-psrl: {IN_ONE_LINE}\n")


def test_json_has_the_texts_themselves(target: str) -> None:
    listed = run(target, "agent", "list", "--json").stdout
    assert json.loads(listed)[0]["agent"] == RAW


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("buffer/7, 5 % über Budget ✓ 日本語", "buffer/7, 5 % über Budget ✓ 日本語"),
        ("\x1b\r\n\t\a\x7f\x85", r"\x1b\r\n\t\x07\x7f\x85"),
        ("\u202a\u202e\u2066\u2069\u200f\u061c\u2028\u2029\ufeff", r"\u202a\u202e\u2066\u2069\u200f\u061c\u2028\u2029\ufeff"),
        ("\ud800\U000e0001", r"\ud800\U000e0001"),
        ("", ""),
    ],
)
def test_only_what_cannot_be_printed_is_replaced(text: str, shown: str) -> None:
    assert visible(text) == shown
