"""The conformance kit at a guarded service: a token for its own agents is enough, and what is not enough is said at once."""

from pathlib import Path

import pytest

from safe_psrl_client import PermissionDeniedError, UnauthenticatedError
from safe_psrl_conformance import Wire, run, selected
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.security.identities import create_token
from safe_psrl_server.security.roles import Role


def test_a_token_for_the_kits_agents_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    token = create_token(file, "kit", [Role.ADMIN], ["kit/*"])
    weak = create_token(file, "weak", [Role.ACT], ["*"])
    with EmbeddedServer(drain_seconds=1.0, security={"identities": file}) as server:
        with Wire(server.target, token=token, prefix="kit/") as wire:
            wire.probe()
            verdicts = list(run(wire, [check for check in selected() if check.chapter != "deadlines"]))
        assert [(verdict.check.name, verdict.reason) for verdict in verdicts if verdict.result != "pass"] == []
        with Wire(server.target, token=weak) as wire, pytest.raises(PermissionDeniedError):
            wire.probe()
        with Wire(server.target) as wire, pytest.raises(UnauthenticatedError):
            wire.probe()
