"""The file of identities: tokens and names in client certificates, with what each may do. Read and written as TOML."""

import fcntl
import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from safe_psrl_server.security.roles import Role
from safe_psrl_server.security.tokens import id_of, is_token, new_token

Signature = tuple[int, int, int] | None


def signature_of(path: Path) -> Signature:
    """Differs after a change; None while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


Pattern = Annotated[str, Field(min_length=1, max_length=256)]


class IdentitiesError(ValueError):
    """The file cannot be used; one line that says why."""


def matches(pattern: str, text: str) -> bool:
    """Whether `text` has `pattern`, in which `*` stands for any text and everything else for itself."""
    first, *middle = pattern.split("*")
    if not middle:
        return text == pattern
    last = middle.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


class Identity(BaseModel):
    """A caller. Roles hold for every agent whose name has one of the patterns; `*` stands for any text, `/` included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$")
    roles: list[Role] = Field(min_length=1)
    agents: list[Pattern] = Field(min_length=1)
    calls_per_second: float | None = Field(None, gt=0)
    concurrent_calls: int | None = Field(None, ge=1)
    max_agents: int | None = Field(None, ge=0)

    def may(self, role: Role, agent: str) -> bool:
        return self.has(role) and any(matches(pattern, agent) for pattern in self.agents)

    def has(self, role: Role) -> bool:
        """For some agents, at least."""
        return role in self.roles or Role.ADMIN in self.roles


class TokenIdentity(Identity):
    """Known by a token, of which only the hash is kept."""

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: datetime | None = None


class CertificateIdentity(Identity):
    """Known by a client certificate that a trusted authority signed."""

    subject: Pattern = Field(description="Pattern for its subject alternative names; for its common name if it has none.")


class Identities(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: list[TokenIdentity] = Field(default_factory=list)
    certificate: list[CertificateIdentity] = Field(default_factory=list)


def parse_identities(text: str) -> Identities:
    """Raises `IdentitiesError`."""
    try:
        identities = Identities.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise IdentitiesError(str(error)) from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise IdentitiesError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    if len({entry.id for entry in identities.token}) < len(identities.token):
        raise IdentitiesError("two tokens have one id")
    return identities


def write_identities(identities: Identities) -> str:
    document: dict[str, Any] = identities.model_dump(exclude_none=True)
    for entry in [*document["token"], *document["certificate"]]:
        entry["roles"] = [str(role) for role in entry["roles"]]
    return tomli_w.dumps({kind: entries for kind, entries in document.items() if entries})


def create_token(file: Path, name: str, roles: Sequence[Role], agents: Sequence[str]) -> str:
    """Add a new token and return its text, which is not stored. Raises `IdentitiesError`, OSError."""
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
    """Remove every token with that name, or the one with that id; returns their number. Raises as above."""
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


CHECK_SECONDS: Final = 1.0  # between checks of the file
log = structlog.get_logger()


class IdentityStore:
    """A change that makes the file unusable keeps the previous identities in force and logs an error."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `IdentitiesError`."""
        self._file = file
        self._clock = clock
        self._checked = clock()
        self._signature = signature_of(file)
        self._load()

    def by_token(self, text: str) -> Identity | None:
        self._reload_if_changed()
        entry = self._tokens.get(id_of(text))
        return entry if is_token(text, entry.sha256 if entry else None) else None

    def by_certificate(self, names: tuple[str, ...]) -> Identity | None:
        """The first entry whose pattern matches one of the certificate's names."""
        self._reload_if_changed()
        matching = (entry for entry in self._certificates if any(matches(entry.subject, name) for name in names))
        return next(matching, None)

    def _reload_if_changed(self) -> None:
        if self._clock() - self._checked < CHECK_SECONDS:
            return
        self._checked = self._clock()
        signature = signature_of(self._file)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._load()
        except IdentitiesError as error:
            log.error("identities not reloaded", problem=f"{self._file}: {error}")  # noqa: TRY400  # not a defect
        else:
            counts = {"tokens": len(self._tokens), "certificates": len(self._certificates)}
            log.info("identities reloaded", file=str(self._file), **counts)

    def _load(self) -> None:
        identities = self._read()
        self._tokens = {entry.id: entry for entry in identities.token}
        self._certificates = identities.certificate

    def _read(self) -> Identities:
        try:
            with self._file.open(encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                    raise IdentitiesError("every user may write to it; run chmod o-w")
                return parse_identities(file.read())
        except (OSError, UnicodeDecodeError) as error:
            raise IdentitiesError(str(error)) from None
