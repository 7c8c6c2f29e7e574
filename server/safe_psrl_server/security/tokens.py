"""Bearer tokens: `spsrl_ID_SECRET`. The id finds the entry, the secret proves it.

A secret is 256 random bits, so a plain SHA-256 keeps it: there is nothing to guess, and a slow hash, made for passwords
that people choose, would only slow every call down.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

PREFIX: Final = "spsrl"
SECRET_BYTES: Final = 32
_NOBODY: Final = hashlib.sha256(secrets.token_bytes(SECRET_BYTES)).hexdigest()  # compared with where there is no entry


class NewToken(NamedTuple):
    id: str
    text: str  # shown once and kept nowhere
    sha256: str


def new_token() -> NewToken:
    number = secrets.token_hex(4)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).rstrip(b"=").decode()
    text = f"{PREFIX}_{number}_{secret}"
    return NewToken(number, text, digest_of(text))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def id_of(text: str) -> str:
    """The id that `text` claims; empty if it is not a token of this service."""
    prefix, _, rest = text.partition("_")
    number, _, secret = rest.partition("_")
    return number if prefix == PREFIX and secret else ""


def is_token(text: str, sha256: str | None) -> bool:
    """Whether `text` has that hash, in the same time for every wrong one; None, of no entry, never is."""
    same = hmac.compare_digest(digest_of(text), sha256 or _NOBODY)
    return same and sha256 is not None
