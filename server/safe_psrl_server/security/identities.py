"""The file of identities: tokens and names in client certificates, with what each may do. Read and written as TOML."""

import tomllib
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from safe_psrl_server.security.roles import Role

Pattern = Annotated[str, Field(min_length=1, max_length=256)]


class IdentitiesError(ValueError):
    """The file cannot be used; one line that says why."""


class Identity(BaseModel):
    """Somebody. Roles hold for every agent whose name has one of the patterns; `*` stands for any text, `/` included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$")
    roles: list[Role] = Field(min_length=1)
    agents: list[Pattern] = Field(min_length=1)
    calls_per_second: float | None = Field(None, gt=0)
    concurrent_calls: int | None = Field(None, ge=1)
    max_agents: int | None = Field(None, ge=0)

    def may(self, role: Role, agent: str) -> bool:
        return self.has(role) and any(fnmatchcase(agent, pattern) for pattern in self.agents)

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
