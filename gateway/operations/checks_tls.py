"""Checks of certificates and private keys: can they be used, for how long, and for the name that others call."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gateway.gateway import GatewayConfig
from gateway.operations.findings import Finding, bad, doubtful, good
from psirp_stack.authentication.files import load_key_pair
from psirp_stack.authentication.keys import KeyFileError
from serving.tls import TlsFiles
from storage.private import OTHERS

CERTIFICATES = "certificates"
KEYS = "keys"
SOON = timedelta(days=14)
"""A certificate that ends sooner should have been renewed by now."""
MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Secured:
    """A port that speaks https."""

    name: str
    """Its section in the configuration."""
    files: TlsFiles
    public_url: str | None = None
    behind_proxy: bool = False


def secured_ports(config: GatewayConfig) -> list[Secured]:
    doors = [door for one in config.on for door in one.listening(one.of(config.protocols))]
    found = [
        Secured(door.section, door.tls, door.public_url, door.behind_proxy) for door in doors if door.tls is not None
    ]
    if config.admin is not None and config.admin.tls is not None:
        found.append(Secured("admin", config.admin.tls))
    if config.web is not None and config.web.tls is not None:
        found.append(Secured("web", config.web.tls, config.web.public_url, bool(config.web.trusted_proxies)))
    return found


def named_in(path: Path) -> list[Secured]:
    """The certificates that a configuration names which cannot be used as a whole: they may be the reason."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    found = []
    for name, section in document.items():
        tls = section.get("tls") if isinstance(section, Mapping) else None
        certificate, key = (tls.get("certificate"), tls.get("key")) if isinstance(tls, Mapping) else (None, None)
        if isinstance(certificate, str) and isinstance(key, str):
            found.append(Secured(name, TlsFiles(path.parent / certificate, path.parent / key)))
    return found


def check_certificates(ports: list[Secured], now: float) -> Iterator[Finding]:
    for port in ports:
        yield from _check(port, datetime.fromtimestamp(now, UTC))


def _check(port: Secured, now: datetime) -> Iterator[Finding]:
    files = port.files
    trouble = [*_key_rights(files.key)]
    chain, key = _chain(port, trouble), _key(port, trouble)
    if chain is not None and key is not None and _public(chain[0].public_key()) != _public(key.public_key()):
        fix = f"name the key that the certificate was asked for with, or ask for a certificate for {files.key}"
        trouble.append(bad(CERTIFICATES, f"[{port.name}.tls] {files.certificate} does not belong to {files.key}", fix))
    if chain is not None:
        trouble += _dates(port, chain, now)
        trouble += _names(port, chain[0])
    yield from trouble
    if not trouble and chain is not None:
        until = chain[0].not_valid_after_utc
        yield good(CERTIFICATES, f"[{port.name}.tls] {files.certificate}: can be used until {until:%Y-%m-%d %H:%M} UTC")


def _key_rights(path: Path) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # said when it is read
    if mode & OTHERS:
        text = f"{path}: others can read this key (mode {mode & 0o777:04o}), and the port does not open with it"
        yield bad(CERTIFICATES, text, f"chmod 600 {path}; if somebody else may have read it, have it replaced")


def _chain(port: Secured, trouble: list[Finding]) -> list[x509.Certificate] | None:
    path = port.files.certificate
    data = _read(path, f"{port.name}.tls.certificate", trouble)
    if data is None:
        return None
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        fix = "put the certificate there as PEM (-----BEGIN CERTIFICATE-----), and those that vouch for it behind it"
        trouble.append(bad(CERTIFICATES, f"[{port.name}.tls] {path}: no certificate ({str(error)[:100]})", fix))
        return None


def _key(port: Secured, trouble: list[Finding]) -> PrivateKeyTypes | None:
    path = port.files.key
    data = _read(path, f"{port.name}.tls.key", trouble)
    if data is None:
        return None
    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        fix = f"take the password off: openssl pkey -in {path} -out new.pem && chmod 600 new.pem && mv new.pem {path}"
        trouble.append(
            bad(CERTIFICATES, f"[{port.name}.tls] {path}: the key has a password, and nobody to type it", fix)
        )
    except (ValueError, UnsupportedAlgorithm):
        fix = "put the key there as PEM (-----BEGIN PRIVATE KEY-----), mode 0600"
        trouble.append(bad(CERTIFICATES, f"[{port.name}.tls] {path}: no private key", fix))
    return None


def _read(path: Path, name: str, trouble: list[Finding]) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        trouble.append(bad(CERTIFICATES, f"{path} is not there", f"put it there, or correct {name}"))
    except OSError as error:
        user = os.geteuid()
        trouble.append(
            bad(CERTIFICATES, f"{path}: {error.strerror}", f"as root: chown {user} {path}, and chmod 600 it")
        )
    return None


def _dates(port: Secured, chain: list[x509.Certificate], now: datetime) -> Iterator[Finding]:
    own = f"[{port.name}.tls] {port.files.certificate}"
    fix = "have it renewed and put the new files in their places: they are taken up without a restart"
    for place, certificate in enumerate(chain):
        what = own if place == 0 else f"{own}, number {place + 1} of its chain"
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now < begins:
            early = "look at this machine's clock, or wait"
            yield bad(CERTIFICATES, f"{what}: cannot be used before {begins:%Y-%m-%d %H:%M} UTC", early)
        elif ends <= now:
            yield bad(CERTIFICATES, f"{what}: ended at {ends:%Y-%m-%d %H:%M} UTC, and nobody accepts it", fix)
        elif ends - now < SOON:
            left = ends - now
            yield doubtful(CERTIFICATES, f"{what}: ends in {left.days} days, {left.seconds // 3600} hours", fix)


def _names(port: Secured, certificate: x509.Certificate) -> Iterator[Finding]:
    if port.public_url is None:
        return
    url = urlsplit(port.public_url)
    if url.scheme == "http" and not port.behind_proxy:
        text = f"{port.name}.public_url is http, but the port speaks https only: nobody gets through"
        yield bad(CERTIFICATES, text, f"write https in {port.name}.public_url")
    host = url.hostname or ""
    names = _names_of(certificate)
    if url.scheme == "http" or _is_for(host, names):
        return
    text = (
        f"[{port.name}.tls] {port.files.certificate}: for {', '.join(names)[:200] or 'no name at all'}, "
        f"not for {host} of {port.name}.public_url"
    )
    fix = f"ask for a certificate with {host} among its subject alternative names, or correct {port.name}.public_url"
    # Behind a proxy only the proxy sees this one, and may be content with it.
    yield doubtful(CERTIFICATES, text, fix) if port.behind_proxy else bad(CERTIFICATES, text, fix)


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    found = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    return found + [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def _is_for(host: str, names: list[str]) -> bool:
    """As clients compare (RFC 6125): `*` stands for one whole label at the left, and for no address."""
    try:
        return str(ip_address(host)) in names
    except ValueError:
        host = host.lower().rstrip(".")
    return host in names or f"*.{host.partition('.')[2]}" in names


def _public(key: object) -> bytes:
    data: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return data


def check_keys(config: GatewayConfig) -> Iterator[Finding]:
    """The key that the gateway's own node signs with; other secrets are read when the configuration is."""
    node = config.network.node
    if node is None or node.keys.signing is None:
        return
    path = Path(node.keys.signing)
    try:
        key = load_key_pair(path)
    except KeyFileError as error:
        fix = f"chmod 600 {path} if it is only that; otherwise `psph keys new` makes one"
        yield bad(KEYS, str(error), fix)
        return
    yield good(KEYS, f"{path}: only its owner can read it; others know it as {key.hash.hex()[:16]}...")
