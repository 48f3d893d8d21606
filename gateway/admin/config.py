"""What an operator sets about the admin port, and how it is checked."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from gateway.tls_section import TlsSection
from serving.limits import Rate
from serving.tls import TlsFiles

MAX_PEERS = 16


class AdminSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The section [admin]."""

    listen: str | None = None
    """Without it there is no admin port."""
    viewer_tokens_file: str | None = None
    operator_tokens_file: str | None = None
    peers: Annotated[tuple[str, ...], Meta(max_length=MAX_PEERS)] = ()
    """Admin ports of other gateways, asked for their part of a publication's way."""
    peer_token_file: str | None = None
    max_viewers: Annotated[int, Meta(ge=1)] = 500
    requests_per_client: Annotated[float, Meta(gt=0.0)] = 50.0
    audit_bytes: Annotated[int, Meta(ge=4096)] = 16 * 1024 * 1024
    tls: TlsSection | None = None


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """Tokens are compared in constant time. Without any, only this machine is let in, and may do everything."""

    host: str = "127.0.0.1"
    port: int = 0
    viewer_tokens: tuple[str, ...] = ()
    operator_tokens: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    peer_token: str | None = None
    max_viewers: int = 500
    per_client: Rate = field(default_factory=lambda: Rate(50, 500))
    audit_bytes: int = 16 * 1024 * 1024
    """The audit log and the one before it, together."""
    snapshot_every: float = 1.0
    tls: TlsFiles | None = None
    """Speak TLS, and nothing else, with these."""

    def __post_init__(self) -> None:
        if not self.viewer_tokens and not self.operator_tokens and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from other machines: name viewer_tokens_file or operator_tokens_file, "
                "or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_section(
    section: AdminSection,
    address: Callable[[str, str], tuple[str, int]],
    secrets: Callable[[str, str | None], tuple[str, ...]],
    tls: Callable[[str, TlsSection | None], TlsFiles | None],
) -> AdminConfig | None:
    """`address`, `secrets` and `tls` read a key as the configuration does. Raises ValueError for `admin.listen`."""
    if section.listen is None:
        return None
    host, port = address("admin.listen", section.listen)
    peer_tokens = secrets("admin.peer_token_file", section.peer_token_file)
    return AdminConfig(
        host=host,
        port=port,
        viewer_tokens=secrets("admin.viewer_tokens_file", section.viewer_tokens_file),
        operator_tokens=secrets("admin.operator_tokens_file", section.operator_tokens_file),
        peers=section.peers,
        peer_token=peer_tokens[0] if peer_tokens else None,
        max_viewers=section.max_viewers,
        per_client=Rate(section.requests_per_client, 10 * section.requests_per_client),
        audit_bytes=section.audit_bytes,
        tls=tls("admin.tls", section.tls),
    )
