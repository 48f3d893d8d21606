"""TLS for a listening port: certificate and key from files, taken up again when the files change."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.private import PrivateFileError, check_secret_file

LOOK_EVERY = 10.0


class TlsError(OSError):
    """Certificate or key cannot be used; the text says which file and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. The certificate's has the chain behind it, and only the owner may read the key's."""

    certificate: Path
    key: Path
    look_every: float = LOOK_EVERY


@dataclass(frozen=True, slots=True)
class CertificateReplaced:
    """New connections are answered with what is in the files now."""

    certificate: str


@dataclass(frozen=True, slots=True)
class CertificateRefused:
    """The files changed to something that cannot be used; the old ones stay in use. Told once for each reason."""

    reason: str


class TlsPort:
    """One context for the life of a port. Connections that are open keep what they were opened with."""

    def __init__(self, files: TlsFiles, observer: Callable[[object], None] | None = None) -> None:
        """Raises `TlsError`."""
        self._files = files
        self._observer = observer
        self._stamp = _stamp(files)
        self._refused = ""
        self.context = _context(files)

    def refresh(self, files: TlsFiles | None = None) -> bool:
        """Take the files up if they changed (or are others); says whether they are in use now and were not before."""
        files = files or self._files
        try:
            stamp = _stamp(files)
            if (files, stamp) == (self._files, self._stamp):
                self._refused = ""
                return False
            _context(files)  # a pair that does not fit, half of it just written, must not touch the one in use
            self.context.load_cert_chain(files.certificate, files.key)
        except (TlsError, ssl.SSLError, OSError) as error:
            # They are looked at again and again, and stay as they are until somebody has read this.
            if str(error) != self._refused:
                self._refused = str(error)
                self._tell(CertificateRefused(self._refused))
            return False
        self._refused = ""
        self._files, self._stamp = files, stamp
        self._tell(CertificateReplaced(str(files.certificate)))
        return True

    async def watch(self) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._files.look_every)
            self.refresh()

    def _tell(self, event: object) -> None:
        if self._observer is not None:
            self._observer(event)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        check_secret_file(files.key)
        # A key with a password would make OpenSSL ask at the terminal, and a service would hang.
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except ssl.SSLError as error:
        raise TlsError(f"{files.certificate} and {files.key} are no certificate and its key ({error.reason})") from None
    except PrivateFileError as error:
        raise TlsError(str(error)) from None
    except OSError as error:
        name = error.filename or f"{files.certificate} or {files.key}"
        raise TlsError(f"{name} cannot be read ({error.strerror})") from None
    return context


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    try:
        both = [path.stat() for path in (files.certificate, files.key)]
    except OSError as error:
        raise TlsError(f"{error.filename} cannot be read ({error.strerror})") from None
    return tuple(number for status in both for number in (status.st_mtime_ns, status.st_size, status.st_ino))
