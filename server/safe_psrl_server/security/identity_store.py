"""The identities in force: the file's, reloaded when it changes."""

import os
import stat
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import structlog

from safe_psrl_server.security.files import signature_of
from safe_psrl_server.security.identities import Identities, IdentitiesError, Identity, parse_identities
from safe_psrl_server.security.tokens import id_of, is_token

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
        matching = (entry for entry in self._certificates if any(fnmatchcase(name, entry.subject) for name in names))
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
