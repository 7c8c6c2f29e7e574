"""The light client of the service, for threads and for asyncio: all that an environment has to install.

with Client("127.0.0.1:50551") as client:
    play(environment, RemoteAgent(client, "buffer"), episodes=100)
"""

import atexit

from safe_psrl_client.agent import Agent, Mode, RemoteAgent
from safe_psrl_client.aio.client import AsyncClient
from safe_psrl_client.aio.episode import AsyncEpisode
from safe_psrl_client.aio.stream import AsyncStepStream
from safe_psrl_client.channel import DEFAULT_TARGET, tls_credentials
from safe_psrl_client.documents import options_from_document, spec_from_document, spec_to_document
from safe_psrl_client.errors import (
    AbortedError,
    AgentPausedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    EpisodeClosedError,
    EpisodeOpenError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    InvalidCredentialsError,
    InvalidDocumentError,
    InvalidTargetError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SafePsrlClientError,
    StepGapError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from safe_psrl_client.play import Environment, EpisodeResult, play
from safe_psrl_client.replies import AgentPolicy, AgentPosterior
from safe_psrl_client.requests import Transition
from safe_psrl_client.sync.client import Client
from safe_psrl_client.sync.episode import Episode
from safe_psrl_client.sync.stream import StepStream, close_open_streams
from safe_psrl_client.warm_start import LoggedStep, warm_start_from_exports, warm_start_from_log

__all__ = [
    "DEFAULT_TARGET",
    "AbortedError",
    "Agent",
    "AgentPausedError",
    "AgentPolicy",
    "AgentPosterior",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncEpisode",
    "AsyncStepStream",
    "CancelledError",
    "Client",
    "DataLossError",
    "DeadlineExceededError",
    "Environment",
    "Episode",
    "EpisodeClosedError",
    "EpisodeOpenError",
    "EpisodeResult",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidCredentialsError",
    "InvalidDocumentError",
    "InvalidTargetError",
    "LoggedStep",
    "Mode",
    "NotFoundError",
    "PermissionDeniedError",
    "RemoteAgent",
    "ResourceExhaustedError",
    "SafePsrlClientError",
    "StepGapError",
    "StepStream",
    "Transition",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "options_from_document",
    "play",
    "spec_from_document",
    "spec_to_document",
    "tls_credentials",
    "warm_start_from_exports",
    "warm_start_from_log",
]

atexit.register(close_open_streams)
