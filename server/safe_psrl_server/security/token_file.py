"""Changing the file of identities: under a lock, in one stroke, for its owner's eyes only."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from safe_psrl_server.security.identities import Identities, IdentitiesError, TokenIdentity, parse_identities, write_identities
from safe_psrl_server.security.roles import Role
from safe_psrl_server.security.tokens import new_token


def create_token(file: Path, name: str, roles: Sequence[Role], agents: Sequence[str]) -> str:
    """Enter a new token and return its text, which cannot be had again. Raises `IdentitiesError`, OSError."""
    token = new_token()
    now = datetime.now(UTC).replace(microsecond=0)
    with _locked(file):
        before = read_identities(file)
        try:
            entry = TokenIdentity(
                name=name, roles=list(roles), agents=list(agents), id=token.id, sha256=token.sha256, created=now
            )
        except ValueError:
            raise IdentitiesError(
                f"name {name!r} or a pattern of {list(agents)!r} cannot be used: letters, digits and . _ : @ / - make a name"
            ) from None
        _replace(file, before.model_copy(update={"token": [*before.token, entry]}))
    return token.text


def revoke_tokens(file: Path, name_or_id: str) -> int:
    """Strike out every token with that name, or the one with that id; how many there were. Raises as above."""
    with _locked(file):
        before = read_identities(file)
        kept = [entry for entry in before.token if name_or_id not in {entry.name, entry.id}]
        if len(kept) < len(before.token):
            _replace(file, before.model_copy(update={"token": kept}))
    return len(before.token) - len(kept)


def read_identities(file: Path) -> Identities:
    """Empty if there is no file. Raises `IdentitiesError`."""
    try:
        return parse_identities(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Identities()
    except UnicodeDecodeError as error:
        raise IdentitiesError(str(error)) from None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """By the directory, for the file itself is replaced."""
    directory = os.open(file.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _replace(file: Path, identities: Identities) -> None:
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(write_identities(identities))
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
