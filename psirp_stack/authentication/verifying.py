"""Checks signatures, and says why one does not count. Refusals are values with a name, words and a counter.

The order of the checks is part of the behaviour: known signer, allowed by the scope's policy, signature, times, replay.
Nothing is remembered of something that was refused, so that a forger cannot use up the numbers of an honest signer.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from psirp_stack.authentication.keys import PublicKey
from psirp_stack.authentication.replay import DEFAULT_STREAMS, DEFAULT_WINDOW, ReplayGuard
from psirp_stack.authentication.signing import (
    PACKET_SIGNED,
    PublicationFacts,
    Signable,
    packet_bytes,
    publication_bytes,
    request_bytes,
)
from psirp_stack.authentication.trust import TrustStore
from psirp_stack.control.messages import Credential, ScopePolicy
from psirp_stack.wire.codec import AuthenticationHeader, Frame, WireError
from psirp_stack.wire.numbers import ID_BYTES

NO_ID = bytes(ID_BYTES)
"""Stands in what is told where a request is about no item."""


class Refusal(Enum):
    """Why something signed, or something that should have been, does not count."""

    UNSIGNED = "it is not signed, and the scope takes signed publications only"
    UNKNOWN_SIGNER = "the signer's key is not among the trusted keys"
    NOT_ALLOWED = "the signer is not among those who may publish in this scope"
    NO_KEY = "the key it comes with is none"
    WRONG_KIND = "the signature is of another kind: a packet's in place of a publication's, or the other way round"
    WRONG_SIGNATURE = "the signature does not fit: something was changed on the way, or another key made it"
    NOT_YET_VALID = "it was signed in the future: a clock is wrong"
    EXPIRED = "its time is over"
    TOO_OLD = "it was signed too long ago: a clock is wrong, or it was kept back"
    REPLAYED = "its sequence number was seen before, or is too old to know"


@dataclass(frozen=True, slots=True)
class SignatureVerdict:
    """`refusal` is None for what counts; `signer` is the key hash of who proved to have made it, None for nobody."""

    refusal: Refusal | None
    signer: bytes | None = None

    @property
    def accepted(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class SignatureRefused:
    """Something signed was dropped."""

    refusal: Refusal
    signer: bytes | None
    sid: bytes
    rid: bytes


@dataclass(frozen=True, slots=True)
class SignatureVerifierConfig:
    max_skew_ms: int = 5 * 60 * 1000
    """How far a signer's clock may be ahead of ours; for requests, also behind."""
    window: int = DEFAULT_WINDOW
    max_streams: int = DEFAULT_STREAMS
    accept_unknown_in_open_scopes: bool = False
    """True: in a scope that is open to all, a signature by an unknown key is like none. False: it is refused."""


Observer = Callable[[SignatureRefused], None]


class SignatureVerifier:
    """Checks what a node receives. Not thread-safe: one for each event loop."""

    def __init__(
        self, trust: TrustStore, config: SignatureVerifierConfig | None = None, observer: Observer | None = None
    ) -> None:
        self._trust = trust
        self._config = config or SignatureVerifierConfig()
        self._observer = observer
        self._requests = ReplayGuard(self._config.window, self._config.max_streams)
        self.refused: Counter[Refusal] = Counter()
        self.accepted = 0

    @property
    def streams_forgotten(self) -> int:
        """How often the bound on remembered streams was reached."""
        return self._requests.forgotten

    def check_publication(
        self,
        facts: PublicationFacts,
        header: AuthenticationHeader | None,
        policy: ScopePolicy,
        now_ms: int,
    ) -> SignatureVerdict:
        """Check what is said of a version. Said again it counts again: its place in its publisher's order is signed,
        and whoever keeps that order hands each version up once."""
        verdict = self._check(header, policy, now_ms, False, lambda known: publication_bytes(facts, known))
        return self._counted(verdict, facts.sid, facts.rid)

    def check_packet(self, frame: Frame, policy: ScopePolicy, now_ms: int) -> SignatureVerdict:
        """Check one frame of a scope whose packets are all signed. Repairs repeat packets, so repeats count."""
        rendezvous = frame.rendezvous
        sid, rid = (b"", b"") if rendezvous is None else (rendezvous.sid, rendezvous.rid)
        header = frame.authentication
        if header is None and policy.every_packet_signed:
            return self._counted(SignatureVerdict(Refusal.UNSIGNED), sid, rid)
        return self._counted(self._check(header, policy, now_ms, True, lambda _: packet_bytes(frame)), sid, rid)

    def check_credential(self, request: Signable, credential: Credential, node: str, now_ms: int) -> SignatureVerdict:
        """Check who asks. The key comes with the credential: whether it may is the policy's to say."""
        try:
            key = PublicKey(credential.public_key)
            refusal, signer = self._credential_refusal(key, request, credential, node, now_ms), key.hash
        except ValueError:
            refusal, signer = Refusal.NO_KEY, None
        sid: bytes = getattr(request, "sid", NO_ID)
        return self._counted(SignatureVerdict(refusal, signer), sid, getattr(request, "rid", NO_ID))

    def _credential_refusal(
        self, key: PublicKey, request: Signable, credential: Credential, node: str, now_ms: int
    ) -> Refusal | None:
        covered = request_bytes(request, node, credential.timestamp, credential.sequence)
        if not key.verifies(credential.signature, covered):
            return Refusal.WRONG_SIGNATURE
        if credential.timestamp > now_ms + self._config.max_skew_ms:
            return Refusal.NOT_YET_VALID
        if credential.timestamp < now_ms - self._config.max_skew_ms:
            return Refusal.TOO_OLD
        if not self._requests.accept(key.hash + node.encode(), credential.sequence):
            return Refusal.REPLAYED
        return None

    def _check(
        self,
        header: AuthenticationHeader | None,
        policy: ScopePolicy,
        now_ms: int,
        packet: bool,
        covered: Callable[[AuthenticationHeader], bytes],
    ) -> SignatureVerdict:
        if header is None:
            return SignatureVerdict(None if policy.publishers is None else Refusal.UNSIGNED)
        key = self._trust.get(header.signer)
        if key is None:
            ignored = policy.publishers is None and self._config.accept_unknown_in_open_scopes
            return SignatureVerdict(None) if ignored else SignatureVerdict(Refusal.UNKNOWN_SIGNER, header.signer)
        if policy.publishers is not None and header.signer not in policy.publishers:
            return SignatureVerdict(Refusal.NOT_ALLOWED, header.signer)
        if bool(header.flags & PACKET_SIGNED) is not packet:
            return SignatureVerdict(Refusal.WRONG_KIND, header.signer)
        try:
            data = covered(header)
        except WireError:
            return SignatureVerdict(Refusal.WRONG_SIGNATURE, header.signer)
        if not key.verifies(header.signature, data):
            return SignatureVerdict(Refusal.WRONG_SIGNATURE, header.signer)
        if header.expiry <= now_ms or header.expiry <= header.timestamp:
            return SignatureVerdict(Refusal.EXPIRED, header.signer)
        if header.timestamp > now_ms + self._config.max_skew_ms:
            return SignatureVerdict(Refusal.NOT_YET_VALID, header.signer)
        return SignatureVerdict(None, header.signer)

    def _counted(self, verdict: SignatureVerdict, sid: bytes, rid: bytes) -> SignatureVerdict:
        if verdict.refusal is None:
            self.accepted += 1
        else:
            self.refused[verdict.refusal] += 1
            if self._observer is not None:
                self._observer(SignatureRefused(verdict.refusal, verdict.signer, sid, rid))
        return verdict
