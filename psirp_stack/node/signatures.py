"""How a node signs, and whom it believes: authentication plugged into transport and rendezvous requests."""

import hashlib

from identifiers import ItemId
from psirp_stack.authentication.signing import PublicationFacts, Signer
from psirp_stack.authentication.verifying import SignatureVerifier
from psirp_stack.control.messages import (
    OPEN_SCOPE,
    Credential,
    Declaration,
    Explain,
    RendezvousRequest,
    ScopePolicy,
)
from psirp_stack.transport.messages import Announcement
from psirp_stack.transport.versions import Version
from psirp_stack.wire.codec import AuthenticationHeader, Frame, MetadataHeader
from psirp_stack.wire.numbers import AUTHENTICATION_BYTES


class NodeSignatures:
    """A node's key, if it has one, and the keys that it knows. Policies of scopes come with `Served`."""

    def __init__(
        self,
        name: str,
        signer: Signer | None = None,
        verifier: SignatureVerifier | None = None,
        *,
        require_signatures: bool = False,
    ) -> None:
        """`require_signatures`: refuse unsigned publications also where the scope's policy would admit them."""
        self._name = name
        self._signer = signer
        self._verifier = verifier
        self._require = require_signatures
        self._policies: dict[ItemId, ScopePolicy] = {}
        self._subscriptions: set[ItemId] = set()
        self._awaited: set[bytes] = set()

    @property
    def signs(self) -> bool:
        return self._signer is not None

    @property
    def verifies(self) -> bool:
        """Whether this node knows keys; without them, who signed a publication is what somebody says."""
        return self._verifier is not None

    def awaits_policy(self, item: bytes) -> bool:
        """Whether an item (Sid and Rid) is subscribed to and its scope's policy was not heard yet."""
        return item in self._awaited

    def subscribed(self, item: ItemId) -> None:
        self._subscriptions.add(item)
        self._awaited.add(bytes(item))

    def unsubscribed(self, item: ItemId) -> None:
        self._subscriptions.discard(item)
        self._policies.pop(item, None)
        self._awaited.discard(bytes(item))

    def served(self, item: ItemId, policy: ScopePolicy) -> None:
        if item in self._subscriptions:
            self._policies[item] = policy
            self._awaited.discard(bytes(item))

    def sign_request(self, request: RendezvousRequest | Declaration, now_ms: int) -> Credential | None:
        """Everything that changes something is signed: the rendezvous then takes it from nobody else in this name."""
        if self._signer is None or isinstance(request, Explain):
            return None
        return self._signer.credential(request, self._name, now_ms)

    def sign_publication(
        self, item: ItemId, header: MetadataHeader, announcement: Announcement, now_ms: int
    ) -> AuthenticationHeader:
        if self._signer is None:
            raise RuntimeError("this node has no key")
        return self._signer.sign_publication(_facts(item, header, announcement), now_ms)

    def sign_packet(self, frame: Frame, now_ms: int) -> Frame:
        return frame if self._signer is None else self._signer.sign_frame(frame, now_ms)

    def verify_publication(
        self,
        item: ItemId,
        header: MetadataHeader,
        announcement: Announcement,
        authentication: AuthenticationHeader | None,
        now_ms: int,
    ) -> str | None:
        """Why a version is refused, in words; None when it counts."""
        policy = self._policies.get(item, OPEN_SCOPE)
        if self._verifier is None:
            return None if policy.publishers is None else "the scope is restricted and this node knows no keys"
        if authentication is None and self._require:
            return "unsigned, and this node takes only signed publications"
        facts = _facts(item, header, announcement)
        verdict = self._verifier.check_publication(facts, authentication, policy, now_ms)
        return None if verdict.refusal is None else verdict.refusal.value

    def refusal_of_pulled(
        self, item: ItemId, publisher: str, version: Version, policy: ScopePolicy, now_ms: int
    ) -> str | None:
        """Why a version that was asked for once does not count, under the policy that the rendezvous said."""
        if self._verifier is None:
            return None if policy.publishers is None else "the scope is restricted and this node knows no keys"
        signed = version.authentication
        if not signed and self._require:
            return "unsigned, and this node takes only signed publications"
        facts = PublicationFacts(
            bytes(item.sid),
            bytes(item.rid),
            version.version_id,
            len(version.content),
            version.epoch,
            version.number,
            version.sha256,
            hashlib.sha256(version.attributes).digest(),
            publisher,
        )
        if len(signed) not in (0, AUTHENTICATION_BYTES):
            return "what should be a signature is none"
        authentication = AuthenticationHeader.unpack(signed, 0) if signed else None
        verdict = self._verifier.check_publication(facts, authentication, policy, now_ms)
        return None if verdict.refusal is None else verdict.refusal.value

    def verify_answer(self, item: ItemId, frame: Frame, now_ms: int) -> str | None:
        """Why what a publisher says of its versions is refused."""
        policy = self._policies.get(item, OPEN_SCOPE)
        if self._verifier is None:
            return None if policy.publishers is None else "the scope is restricted and this node knows no keys"
        if frame.authentication is None and self._require:
            return "unsigned, and this node takes only signed publications"
        verdict = self._verifier.check_packet(frame, policy, now_ms)
        return None if verdict.refusal is None else verdict.refusal.value

    def verify_packet(self, item: ItemId, frame: Frame, now_ms: int) -> str | None:
        policy = self._policies.get(item, OPEN_SCOPE)
        if self._verifier is None:
            return "every packet must be signed, and this node knows no keys"
        verdict = self._verifier.check_packet(frame, policy, now_ms)
        return None if verdict.refusal is None else verdict.refusal.value


def _facts(item: ItemId, header: MetadataHeader, announcement: Announcement) -> PublicationFacts:
    return PublicationFacts(
        bytes(item.sid),
        bytes(item.rid),
        header.vrid,
        header.length,
        announcement.epoch,
        announcement.number,
        announcement.sha256,
        announcement.attributes
        if announcement.attributes_in_body
        else hashlib.sha256(announcement.attributes).digest(),
        announcement.publisher,
    )
