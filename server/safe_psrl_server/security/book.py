"""The identities in force: the file, read again when it changes."""

import os
import stat
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import structlog

from safe_psrl_server.security.identities import (
    CertificateIdentity,
    IdentitiesError,
    Identity,
    TokenIdentity,
    parse_identities,
)
from safe_psrl_server.security.tokens import id_of, is_token

LOOK_SECONDS: Final = 1.0  # between looks at the file
log = structlog.get_logger()


class IdentityBook:
    """A file that cannot be used after a change leaves the identities as they were, with an error in the log."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `IdentitiesError`."""
        self._file = file
        self._clock = clock
        self._looked = clock()
        self._seen = self._signature()
        self._read()

    def by_token(self, text: str) -> Identity | None:
        self._refresh()
        entry = self._tokens.get(id_of(text))
        return entry if is_token(text, entry.sha256 if entry else None) else None

    def by_certificate(self, names: tuple[str, ...]) -> Identity | None:
        """The first entry that one of the certificate's names fits."""
        self._refresh()
        for entry in self._certificates:
            if any(fnmatchcase(name, entry.subject) for name in names):
                return entry
        return None

    def _refresh(self) -> None:
        if self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._read()
        except IdentitiesError as error:
            problem = f"{self._file}: {error}"
            log.error("identities not changed: the new file cannot be used", problem=problem)  # noqa: TRY400  # no defect
        else:
            log.info(
                "identities read again",
                file=str(self._file),
                tokens=len(self._tokens),
                certificates=len(self._certificates),
            )

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> None:
        try:
            with self._file.open(encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                    raise IdentitiesError("everybody may write to it; chmod o-w")
                identities = parse_identities(file.read())
        except (OSError, UnicodeDecodeError) as error:
            raise IdentitiesError(str(error)) from None
        self._tokens: dict[str, TokenIdentity] = {entry.id: entry for entry in identities.token}
        self._certificates: list[CertificateIdentity] = identities.certificate
