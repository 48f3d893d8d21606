"""Who is believed to be rendezvous or topology manager: nodes that the domain names, and nodes with a grant.

A domain names its role holders in its configuration, by node name, or it has a key. A grant says with that key's
signature that a node may have roles until a certain time, and names the node's own key; the node signs every link state
in which it claims a role with that key. So a grant that was read from the wire is of no use to another node, and
nobody can say in a role holder's name that the role is elsewhere.

A node believes itself: its own configuration is its domain's, as far as it can know.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from psirp_stack.authentication.keys import KeyPair, PublicKey
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.messages import LinkState, RoleGrant, RoleProof

GRANT_CONTEXT = b"psph role grant 1\0"
CLAIM_CONTEXT = b"psph role claim 1\0"
UNSIGNED = bytes(64)
FOREVER = (1 << 63) - 1
_encode = msgspec.msgpack.Encoder().encode


class GrantError(ValueError):
    """A grant that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of a node that claims roles."""

    roles: int
    until_ms: int = FOREVER
    """When the belief ends; later it has to be looked at again."""
    doubt: str = ""
    """Why some of the claimed roles are not believed."""


NOTHING_CLAIMED = Belief(0)


class RoleTrust:
    """What one domain believes."""

    def __init__(
        self, named: Mapping[ServiceRole, Collection[str]] | None = None, key: PublicKey | None = None
    ) -> None:
        self._named = {role: frozenset(names) for role, names in (named or {}).items()}
        self._key = key

    @property
    def says_something(self) -> bool:
        """Whether anybody beside this node itself could ever be believed."""
        return self._key is not None or any(self._named.values())

    def named(self, node: str) -> int:
        """The roles that the configuration gives a node."""
        return sum(int(role) for role, names in self._named.items() if node in names)

    def belief(self, state: LinkState, now_ms: int) -> Belief:
        """What of the roles that a link state claims is to be believed."""
        if not state.roles:
            return NOTHING_CLAIMED
        named = self.named(state.origin) & state.roles
        if named == state.roles:
            return Belief(named)
        granted, until_ms, doubt = self._granted(state, now_ms)
        believed = named | (granted & state.roles)
        if believed != state.roles and not doubt:
            doubt = f"its grant is for {describe_roles(granted)}"
        return Belief(believed, until_ms, "" if believed == state.roles else doubt)

    def _granted(self, state: LinkState, now_ms: int) -> tuple[int, int, str]:
        proof = state.proof
        if proof is None:
            return 0, FOREVER, "the domain does not name it, and it shows no grant"
        if self._key is None:
            return 0, FOREVER, "the domain does not name it, and no key is configured that grants are signed with"
        grant = proof.grant
        if grant.node != state.origin:
            return 0, FOREVER, f"its grant is for {grant.node}"
        if grant.until_ms <= now_ms:
            return 0, FOREVER, "its grant is over"
        try:
            holder = PublicKey(grant.key)
        except ValueError as error:
            return 0, FOREVER, f"its grant names no key: {error}"
        if not self._key.verifies(grant.signature, _grant_bytes(grant)):
            return 0, FOREVER, "its grant is not signed with the domain's key"
        if not holder.verifies(proof.signature, _claim_bytes(state)):
            return 0, FOREVER, "it did not sign its claim with the key that its grant names"
        return grant.roles, grant.until_ms, ""


class RoleHolder:
    """A node's own proof: its grant, and the key that the grant names."""

    def __init__(self, grant: RoleGrant, key: KeyPair) -> None:
        if grant.key != key.public.raw:
            raise GrantError(f"the grant for {grant.node} names another key than this node signs with")
        self.grant = grant
        self._key = key

    def proven(self, state: LinkState) -> LinkState:
        """The link state with a proof of the roles that it claims."""
        proof = RoleProof(self.grant, self._key.sign(_claim_bytes(state)))
        return msgspec.structs.replace(state, proof=proof)


def make_grant(domain_key: KeyPair, node: str, roles: int, key: PublicKey, until_ms: int) -> RoleGrant:
    grant = RoleGrant(node, roles, key.raw, until_ms, UNSIGNED)
    return msgspec.structs.replace(grant, signature=domain_key.sign(_grant_bytes(grant)))


def describe_roles(roles: int) -> str:
    return " and ".join(role.name.lower() for role in ServiceRole if roles & role and role.name) or "no role"


def _grant_bytes(grant: RoleGrant) -> bytes:
    return GRANT_CONTEXT + _encode(msgspec.structs.replace(grant, signature=UNSIGNED))


def _claim_bytes(state: LinkState) -> bytes:
    """All of the part of a link state that carries the roles, but the proof itself."""
    return CLAIM_CONTEXT + _encode(msgspec.structs.replace(state, proof=None))
