"""What all pages share: the fleet, and the client that pages ask for more."""

from dataclasses import dataclass

from safe_psrl_client import AsyncClient
from safe_psrl_console.fleet import Fleet


@dataclass(frozen=True)
class Live:
    client: AsyncClient
    fleet: Fleet
