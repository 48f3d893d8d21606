"""Grants of roles as files."""

import json
from pathlib import Path

import msgspec

from psirp_stack.authentication.files import write_new
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.messages import RoleGrant

MAX_GRANT_FILE_BYTES = 4096


def save_grant(grant: RoleGrant, path: Path) -> None:
    """Write a new file; one that is there is never replaced."""
    document = {
        "node": grant.node,
        "roles": [role.name.lower() for role in ServiceRole if grant.roles & role and role.name],
        "key": grant.key.hex(),
        "until_ms": grant.until_ms,
        "signature": grant.signature.hex(),
    }
    write_new(path, json.dumps(document, indent=1).encode() + b"\n")


class _GrantFile(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    roles: list[str]
    key: str
    until_ms: int
    signature: str


def load_grant(path: Path) -> RoleGrant:
    """A grant as `save_grant` wrote it. Its signature is not looked at: that is for those who are to believe it."""
    known = {role.name.lower(): int(role) for role in ServiceRole if role.name}
    try:
        with path.open("rb") as file:
            said = msgspec.json.decode(file.read(MAX_GRANT_FILE_BYTES + 1), type=_GrantFile)
        values = (
            said.node,
            sum(known[name] for name in set(said.roles)),
            bytes.fromhex(said.key),
            said.until_ms,
            bytes.fromhex(said.signature),
        )
        return msgspec.convert(values, RoleGrant, strict=True)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    except KeyError as error:
        raise KeyFileError(f"{path}: there is no role {error}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise KeyFileError(f"{path}: no grant of roles: {error}") from None
