"""The role that each method needs. A method without an entry is denied to every caller."""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple


class Role(StrEnum):
    """For agents whose name has a pattern."""

    ACT = "act"  # play: the whole of ControlService, and nothing else
    READ = "read"  # look: status, policy, posterior, export, verification
    ADMIN = "admin"  # everything


class Scope(Enum):
    """Which agents a call is about."""

    REQUEST = auto()  # the one that its request names
    MESSAGES = auto()  # those that the messages of its stream name: the service looks at each
    LISTING = auto()  # all that the caller may read: the service leaves out the others
    NONE = auto()  # none


class Rule(NamedTuple):
    """`role` is None if any identity will do; `public` needs no identity at all."""

    role: Role | None
    scope: Scope
    public: bool = False


_ACT, _READ, _ADMIN = (Rule(role, Scope.REQUEST) for role in Role)
_HEALTH: Final = Rule(None, Scope.NONE, public=True)
_REFLECTION: Final = Rule(None, Scope.NONE)

RULES: Final[Mapping[str, Rule]] = {
    "/safe_psrl.v1.ControlService/StartEpisode": _ACT,
    "/safe_psrl.v1.ControlService/GetAction": _ACT,
    "/safe_psrl.v1.ControlService/ReportTransition": _ACT,
    "/safe_psrl.v1.ControlService/Step": _ACT,
    "/safe_psrl.v1.ControlService/StepStream": Rule(Role.ACT, Scope.MESSAGES),
    "/safe_psrl.v1.ControlService/ReportEpisode": _ACT,
    "/safe_psrl.v1.ControlService/CorrectSignal": _ACT,
    "/safe_psrl.v1.ControlService/EndEpisode": _ACT,
    "/safe_psrl.v1.AdminService/CreateAgent": _ADMIN,
    "/safe_psrl.v1.AdminService/GetAgent": _READ,
    "/safe_psrl.v1.AdminService/ListAgents": Rule(Role.READ, Scope.LISTING),
    "/safe_psrl.v1.AdminService/DeleteAgent": _ADMIN,
    "/safe_psrl.v1.AdminService/PauseAgent": _ADMIN,
    "/safe_psrl.v1.AdminService/ResumeAgent": _ADMIN,
    "/safe_psrl.v1.AdminService/UpdateAgent": _ADMIN,
    "/safe_psrl.v1.AdminService/ListEvents": _READ,
    "/safe_psrl.v1.AdminService/GetHistory": _READ,
    "/safe_psrl.v1.AdminService/GetPolicy": _READ,
    "/safe_psrl.v1.AdminService/ExplainAction": _READ,
    "/safe_psrl.v1.AdminService/CompareAgent": _READ,
    "/safe_psrl.v1.AdminService/GetPosterior": _READ,
    "/safe_psrl.v1.AdminService/WatchAgents": Rule(Role.READ, Scope.LISTING),
    "/safe_psrl.v1.AdminService/ExportAgent": _READ,  # no more than definition, policy and posterior, which `read` has
    "/safe_psrl.v1.AdminService/ExportTransitions": _READ,
    "/safe_psrl.v1.AdminService/ImportAgent": Rule(Role.ADMIN, Scope.MESSAGES),
    "/safe_psrl.v1.AdminService/VerifyAgent": _READ,
    "/grpc.health.v1.Health/Check": _HEALTH,
    "/grpc.health.v1.Health/List": _HEALTH,  # answers UNIMPLEMENTED
    "/grpc.health.v1.Health/Watch": _HEALTH,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _REFLECTION,
}
