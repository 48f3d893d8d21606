"""The key that signs updates (TSIG), read from a file only its owner may read.

The file is what BIND's `tsig-keygen -a hmac-sha256 NAME` prints, and what `nsupdate -k` takes:

    key "NAME" {
        algorithm hmac-sha256;
        secret "BASE64";
    };
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path

import dns.exception
import dns.name
import dns.tsig

from gateway.discovery.model import DiscoveryError
from storage.private import PrivateFileError, read_secret_file

MAX_KEY_FILE = 4096
MIN_SECRET = 16
"""Bytes. Shorter secrets could be guessed from one signed message."""
ALGORITHMS = {
    "hmac-sha256": dns.tsig.HMAC_SHA256,
    "hmac-sha384": dns.tsig.HMAC_SHA384,
    "hmac-sha512": dns.tsig.HMAC_SHA512,
}

_KEY = re.compile(r'\s*key\s+("?)(?P<name>[^\s"{};]+)\1\s*\{(?P<body>[^{}]*)\}\s*;\s*')
_STATEMENT = re.compile(r'\s*(?P<word>algorithm|secret)\s+("?)(?P<value>[^\s";]+)\2\s*;')


class UpdateKeyError(DiscoveryError):
    """The key cannot be used; the text never holds any of the secret."""


@dataclass(frozen=True, slots=True)
class UpdateKey:
    name: str
    algorithm: str
    secret: bytes = field(repr=False)

    def for_signing(self) -> dns.tsig.Key:
        return dns.tsig.Key(self.name, self.secret, ALGORITHMS[self.algorithm])


def read_key(path: Path) -> UpdateKey:
    """The one key in a file that nobody but its owner may read."""
    try:
        return parse_key(read_secret_file(path, MAX_KEY_FILE).decode("ascii"))
    except PrivateFileError as error:
        raise UpdateKeyError(f"the key file: {error}") from None
    except UnicodeDecodeError:
        raise UpdateKeyError(f"the key file {path} is not text") from None
    except UpdateKeyError as error:
        raise UpdateKeyError(f"the key file {path}: {error}") from None


def parse_key(text: str) -> UpdateKey:
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    whole = _KEY.fullmatch(text)
    if whole is None:
        raise UpdateKeyError('expected one `key "NAME" { algorithm ...; secret "..."; };` as tsig-keygen prints it')
    values: dict[str, str] = {}
    body, position = whole["body"], 0
    while statement := _STATEMENT.match(body, position):
        if statement["word"] in values:
            raise UpdateKeyError(f"{statement['word']} stands there twice")
        values[statement["word"]] = statement["value"]
        position = statement.end()
    if body[position:].strip() or len(values) != len(("algorithm", "secret")):
        raise UpdateKeyError("expected an algorithm and a secret between the braces, and nothing else")
    algorithm = values["algorithm"].lower()
    if algorithm not in ALGORITHMS:
        raise UpdateKeyError(f"the algorithm {algorithm[:40]!r} is not used here: expected {', '.join(ALGORITHMS)}")
    try:
        secret = base64.b64decode(values["secret"], validate=True)
        name = dns.name.from_text(whole["name"]).to_text()
    except binascii.Error:
        raise UpdateKeyError("the secret is not base64") from None
    except (dns.exception.DNSException, UnicodeError):
        raise UpdateKeyError(f"the key's name {whole['name'][:80]!r} is not a domain name") from None
    if len(secret) < MIN_SECRET:
        raise UpdateKeyError(f"the secret has {len(secret)} bytes: expected {MIN_SECRET} or more")
    return UpdateKey(name, algorithm, secret)
