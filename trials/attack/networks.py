"""Configurations of the attacked gateways and of the node between them, by what its domain asks of its members.

hub ===== UDP ===== core ===== raw Ethernet ===== far          (hub waits for one more neighbour, which is not there)
"""

import base64
import contextlib
import io
import secrets
from enum import StrEnum
from pathlib import Path

from gateway.cli import cmd_keys
from psirp_stack.authentication.files import load_public_key
from trials.attack.places import DOMAIN, HUB, OPERATOR_TOKEN, OTHER_HUB, STRANGER, UNUSED_PORT, WIRE_ENDS, WIRE_PORT

KEYS = "keys"
OPERATORS = "operators.tokens"
MEMBER = "a-member"
"""The name of a member that turns bad: the first of all, where names decide."""
SHORT_LEASE = 3.0
"""Seconds: whoever keeps a node from being heard is noticed within an attack."""


class TrialDomain(StrEnum):
    """What a domain asks of who wants to belong to it."""

    OPEN = "open"
    """Nothing: only to see that an attack would succeed there."""
    SEALED = "sealed"
    """Its secret."""
    SIGNED = "signed"
    """Its secret, grants for roles, signatures for publications: one of its members is a bad one."""


def make_domain(folder: Path, domain: TrialDomain) -> None:
    """Secret and keys, as far as the domain has some."""
    tokens = folder / OPERATORS
    tokens.touch(mode=0o600)
    tokens.write_text(f"{OPERATOR_TOKEN}\n")
    keys = folder / KEYS
    if domain is TrialDomain.SEALED:
        keys.mkdir(mode=0o700)
        secret = keys / "domain.secret"
        secret.touch(mode=0o600)
        secret.write_bytes(base64.b64encode(secrets.token_bytes(32)) + b"\n")
    elif domain is TrialDomain.SIGNED:
        with contextlib.redirect_stdout(io.StringIO()):
            cmd_keys.setup(keys, "core", roles=["rendezvous", "topology"], member=False)
            for name in ("hub", "far"):
                cmd_keys.setup(keys, name, roles=[], member=True)
            # Known to nobody else, as everybody knows only those whose publications they want.
            bad = folder / MEMBER
            cmd_keys.make(bad, MEMBER)


def publisher_key(folder: Path) -> str:
    """The hash of the key that the policy of the innocent's item names."""
    return load_public_key(folder / KEYS / "hub.pub").hash.hex()


def configurations(domain: TrialDomain, sections: str = "") -> dict[str, str]:
    """Files of both gateways and of the node between them. `sections`: more of the attacked one's."""
    hub, core = WIRE_ENDS
    links = {
        "core": f'{{ udp = "{core}:{WIRE_PORT}", peer = "{hub}:{WIRE_PORT}" }}, {{ ethernet = "far" }}',
        "hub": f'{{ udp = "{hub}:{WIRE_PORT}", peer = "{core}:{WIRE_PORT}" }}, '
        f'{{ udp = "{HUB}:{UNUSED_PORT}", peer = "{STRANGER}:{UNUSED_PORT}" }}',
        "far": '{ ethernet = "core" }',
    }
    files = {}
    for name, listed in links.items():
        node = f'name = "{name}"\nlinks = [{listed}]\n{_membership(name, domain)}'
        if name == "core":
            files[name] = f'{node}roles = ["rendezvous", "topology"]\ndata = "core"\nsocket = "core.sock"\n'
            continue
        address = HUB if name == "hub" else OTHER_HUB
        # The publisher's domain is that of the attacked gateway, which brings what is published there.
        zones = f'domain = "{DOMAIN}"\nzones = ["{DOMAIN}"]' if name == "hub" else ""
        files[name] = (
            f'[gateway]\n{zones}\n[store]\npath = "{name}"\n[hub]\nlisten = "{address}:80"\n'
            f'public_url = "http://{address}/"\n[node]\n{node}'
        )
        if name == "hub":
            files[name] += sections
    return files


def _membership(name: str, domain: TrialDomain) -> str:
    by_name = 'rendezvous = ["core"], topology = ["core"]'
    match domain:
        case TrialDomain.OPEN:
            return f"domain = {{ open = true, {by_name} }}\n"
        case TrialDomain.SEALED:
            return f'domain = {{ secret_file = "{KEYS}/domain.secret", {by_name} }}\n'
    keys = f'signing = "{KEYS}/{name}.key", trusted = "{KEYS}/trusted", require_signatures = true'
    if name == "core":
        keys += f', grant = "{KEYS}/core.grant"'
    return (
        f'domain = {{ secret_file = "{KEYS}/domain.secret", key = "{KEYS}/domain.pub" }}\n'
        f"keys = {{ {keys} }}\ntimes = {{ lease = {SHORT_LEASE} }}\n"
    )
