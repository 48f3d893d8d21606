"""Keys, signatures on publications and packets, and what is refused: tampering, replay, expiry, unknown signers."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers.content import version_id
from psirp_stack.authentication.files import load_key_pair, load_public_key, save_key_pair, save_public_key
from psirp_stack.authentication.keys import FIELD_PRIME, WEAK_Y, KeyFileError, KeyPair, PublicKey
from psirp_stack.authentication.replay import ReplayGuard, ReplayWindow
from psirp_stack.authentication.signing import PublicationFacts, Signer
from psirp_stack.authentication.trust import TrustStore
from psirp_stack.authentication.verifying import Refusal, SignatureRefused, SignatureVerifier, SignatureVerifierConfig
from psirp_stack.control.messages import OPEN_SCOPE, Credential, PublishItem, ScopePolicy
from psirp_stack.wire.codec import (
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    MetadataHeader,
    RendezvousHeader,
    build,
    parse,
)
from psirp_stack.wire.numbers import AUTHENTICATION_BYTES, HeaderType

NOW = 1_800_000_000_000
SID, RID, VRID = (bytes([n]) * 32 for n in (1, 2, 3))
ALICE, BOB, MALLORY = (KeyPair(bytes([n]) * 32) for n in (11, 12, 13))
BY_ALICE = ScopePolicy(publishers=(ALICE.hash,))
FACTS = PublicationFacts.of(SID, RID, VRID, "n0", 7, 1, b"content", b"attributes")


def verifier(**settings: int | bool) -> SignatureVerifier:
    return SignatureVerifier(TrustStore([ALICE.public, BOB.public]), SignatureVerifierConfig(**settings))  # type: ignore[arg-type]


def refusal(
    header: AuthenticationHeader | None,
    facts: PublicationFacts = FACTS,
    policy: ScopePolicy = BY_ALICE,
    now: int = NOW,
    by: SignatureVerifier | None = None,
) -> Refusal | None:
    return (by or verifier()).check_publication(facts, header, policy, now).refusal


# Keys.


def test_a_key_is_named_by_the_hash_of_its_public_half() -> None:
    assert ALICE.hash == hashlib.sha256(ALICE.public.raw).digest()
    assert len({KeyPair.generate().hash for _ in range(20)}) == 20


def test_signatures_are_those_of_the_standard() -> None:
    """RFC 8032, section 7.1, test 2."""
    pair = KeyPair(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert pair.public.raw.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert pair.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_keys_are_kept_in_files_that_nobody_else_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    save_key_pair(ALICE, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_key_pair(path).hash == ALICE.hash
    with pytest.raises(KeyFileError, match="not overwritten"):
        save_key_pair(BOB, path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others can read"):
        load_key_pair(path)
    save_public_key(ALICE.public, tmp_path / "a.pub")
    assert load_public_key(tmp_path / "a.pub") == ALICE.public
    assert ALICE.public.raw.hex() not in repr(ALICE)


@given(st.binary(max_size=200))
def test_files_that_hold_no_key_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no public key in PEM"):
        PublicKey.from_pem(b"-----BEGIN PUBLIC KEY-----\n" + data)


# Publications.


def test_a_signed_publication_is_accepted_and_its_signer_named() -> None:
    checker = verifier()
    verdict = checker.check_publication(FACTS, Signer(ALICE, NOW).sign_publication(FACTS, NOW), BY_ALICE, NOW)
    assert verdict.accepted
    assert verdict.signer == ALICE.hash
    assert checker.accepted == 1


def test_9_equal_content_has_an_equal_version_id_on_two_nodes_and_both_signatures_count() -> None:
    for content in (b"", b"a", bytes(10_000)):
        vrid = bytes(version_id(content))
        alice = PublicationFacts.of(SID, RID, vrid, "n0", 1, 1, content, b"")
        bob = PublicationFacts.of(SID, RID, bytes(version_id(bytes(bytearray(content)))), "n0", 9, 4, content, b"")
        assert (alice.vrid, alice.content_digest) == (bob.vrid, bob.content_digest)
        assert refusal(Signer(ALICE, NOW).sign_publication(alice, NOW), alice, OPEN_SCOPE) is None
        assert refusal(Signer(BOB, NOW).sign_publication(bob, NOW), bob, OPEN_SCOPE) is None


@pytest.mark.parametrize("changed", [field.name for field in fields(PublicationFacts)])
def test_every_fact_is_covered(changed: str) -> None:
    header = Signer(ALICE, NOW).sign_publication(FACTS, NOW)
    value = getattr(FACTS, changed)
    other = bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) else value + type(value)(1)
    assert refusal(header, replace(FACTS, **{changed: other})) is Refusal.WRONG_SIGNATURE


@pytest.mark.parametrize("changed", ["timestamp", "sequence", "expiry", "signature"])
def test_every_field_of_the_header_is_covered(changed: str) -> None:
    header = Signer(ALICE, NOW).sign_publication(FACTS, NOW)
    value = getattr(header, changed)
    other = bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) else value + 1
    assert refusal(replace(header, **{changed: other})) is Refusal.WRONG_SIGNATURE


def test_another_signer_cannot_take_over_a_signature() -> None:
    header = Signer(ALICE, NOW).sign_publication(FACTS, NOW)
    assert refusal(replace(header, signer=BOB.hash), policy=OPEN_SCOPE) is Refusal.WRONG_SIGNATURE


def test_who_is_not_known_or_not_allowed_is_refused_before_anything_else() -> None:
    assert refusal(Signer(MALLORY, NOW).sign_publication(FACTS, NOW)) is Refusal.UNKNOWN_SIGNER
    assert refusal(Signer(BOB, NOW).sign_publication(FACTS, NOW)) is Refusal.NOT_ALLOWED
    assert refusal(Signer(BOB, NOW).sign_publication(FACTS, NOW), policy=OPEN_SCOPE) is None
    assert refusal(None) is Refusal.UNSIGNED
    assert refusal(None, policy=OPEN_SCOPE) is None


def test_unknown_signers_in_open_scopes_are_refused_unless_configured() -> None:
    header = Signer(MALLORY, NOW).sign_publication(FACTS, NOW)
    assert refusal(header, policy=OPEN_SCOPE) is Refusal.UNKNOWN_SIGNER
    lenient = verifier(accept_unknown_in_open_scopes=True)
    verdict = lenient.check_publication(FACTS, header, OPEN_SCOPE, NOW)
    assert verdict.accepted
    assert verdict.signer is None
    assert refusal(header, by=lenient) is Refusal.UNKNOWN_SIGNER


def test_times_are_kept() -> None:
    signer = Signer(ALICE, NOW, lifetime_ms=1000)
    header = signer.sign_publication(FACTS, NOW)
    assert refusal(header, now=NOW + 999) is None
    assert refusal(header, now=NOW + 1000) is Refusal.EXPIRED
    skew = SignatureVerifierConfig().max_skew_ms
    assert refusal(signer.sign_publication(FACTS, NOW + skew)) is None
    assert refusal(signer.sign_publication(FACTS, NOW + skew + 1)) is Refusal.NOT_YET_VALID
    assert refusal(Signer(ALICE, NOW, lifetime_ms=0).sign_publication(FACTS, NOW), now=NOW - 1) is Refusal.EXPIRED


def test_a_version_may_be_shown_again_but_in_no_other_place() -> None:
    """Repairs repeat announcements; what keeps a replay from counting twice is its place in its publisher's order."""
    checker = verifier()
    header = Signer(ALICE, NOW).sign_publication(FACTS, NOW)
    assert [refusal(header, by=checker) for _ in range(3)] == [None] * 3
    for elsewhere in (replace(FACTS, number=2), replace(FACTS, epoch=1 << 62), replace(FACTS, publisher="n1")):
        assert refusal(header, elsewhere, by=checker) is Refusal.WRONG_SIGNATURE


def test_sequence_numbers_of_a_later_life_are_higher() -> None:
    checker = verifier()
    for life in range(3):
        signer = Signer(ALICE, NOW + life)
        for number in range(20):
            facts = replace(FACTS, epoch=life, number=number)
            assert refusal(signer.sign_publication(facts, NOW), facts, by=checker) is None


def test_a_forger_does_not_use_up_the_numbers_of_an_honest_signer() -> None:
    checker = verifier()
    header = Signer(ALICE, NOW).sign_publication(FACTS, NOW)
    forged = replace(header, sequence=header.sequence + 1_000_000)
    assert refusal(forged, by=checker) is Refusal.WRONG_SIGNATURE
    assert refusal(header, by=checker) is None


def test_refusals_are_counted_and_told() -> None:
    told: list[SignatureRefused] = []
    checker = SignatureVerifier(TrustStore(), observer=told.append)
    checker.check_publication(FACTS, Signer(ALICE, NOW).sign_publication(FACTS, NOW), BY_ALICE, NOW)
    assert told == [SignatureRefused(Refusal.UNKNOWN_SIGNER, ALICE.hash, SID, RID)]
    assert checker.refused[Refusal.UNKNOWN_SIGNER] == 1


def test_facts_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(FACTS, sid=b"short")
    with pytest.raises(ValueError, match="64-bit"):
        replace(FACTS, length=-1)


# Packets.


def data_frame(payload: bytes | None = b"segment") -> Frame:
    rendezvous = RendezvousHeader(HeaderType.PUBLISH_DATA, SID, RID, VRID, 4)
    return Frame((ForwardingHeader(bytes(32)), rendezvous), payload)


def metadata_frame() -> Frame:
    metadata = MetadataHeader(SID, RID, VRID, length=100, max_seqnum=1)
    return Frame((ForwardingHeader(bytes(32)), metadata), b"announcement")


EVERY_PACKET = ScopePolicy(publishers=(ALICE.hash,), every_packet_signed=True)


@pytest.mark.parametrize("frame", [data_frame(), data_frame(None), data_frame(b""), metadata_frame()])
def test_a_signed_packet_survives_what_changes_on_the_way(frame: Frame) -> None:
    signed = Signer(ALICE, NOW).sign_frame(frame, NOW)
    assert len(build(signed)) == len(build(frame)) + AUTHENTICATION_BYTES
    arrived = parse(build(signed))
    changed = []
    for header in arrived.headers:
        if isinstance(header, ForwardingHeader):
            changed.append(replace(header, ttl=3, fid=b"\x01" * 32))
        elif isinstance(header, MetadataHeader):
            changed.append(replace(header, collected_fid=b"\x77" * 32))
        else:
            changed.append(header)
    padding = b"" if arrived.payload is not None else bytes(9)
    verdict = verifier().check_packet(Frame(tuple(changed), arrived.payload, padding), EVERY_PACKET, NOW)
    assert verdict.refusal is None
    assert verdict.signer == ALICE.hash


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_every_bit_that_stays_on_the_way_is_covered(position: int, bit: int) -> None:
    signed = bytearray(build(Signer(ALICE, NOW).sign_frame(data_frame(), NOW)))
    index = 42 + position % (len(signed) - 42)
    signed[index] ^= 1 << bit
    try:
        frame = parse(bytes(signed))
    except Exception:
        return
    assert verifier().check_packet(frame, EVERY_PACKET, NOW).refusal is not None


def test_packets_without_a_signature_of_their_own_are_refused_where_all_are_signed() -> None:
    assert verifier().check_packet(data_frame(), EVERY_PACKET, NOW).refusal is Refusal.UNSIGNED
    assert verifier().check_packet(data_frame(), OPEN_SCOPE, NOW).refusal is None


def test_a_packets_signature_is_none_of_a_publication_and_the_other_way_round() -> None:
    signer = Signer(ALICE, NOW)
    publication = signer.sign_publication(FACTS, NOW)
    packet = signer.sign_frame(data_frame(), NOW)
    assert packet.authentication is not None
    assert refusal(packet.authentication) is Refusal.WRONG_KIND
    assert refusal(replace(packet.authentication, flags=0)) is Refusal.WRONG_SIGNATURE
    frame = replace(data_frame(), headers=(*data_frame().headers, publication))
    assert verifier().check_packet(frame, EVERY_PACKET, NOW).refusal is Refusal.WRONG_KIND


def test_repairs_may_repeat_a_packet() -> None:
    signed = Signer(ALICE, NOW).sign_frame(data_frame(), NOW)
    checker = verifier()
    assert [checker.check_packet(signed, EVERY_PACKET, NOW).accepted for _ in range(3)] == [True] * 3


# Requests.


def test_a_credential_is_checked_whatever_key_it_brings() -> None:
    request = PublishItem(1, SID, RID)
    checker = verifier()
    good = Signer(MALLORY, NOW).credential(request, "node", NOW)
    assert checker.check_credential(request, good, "node", NOW).signer == MALLORY.hash
    assert checker.check_credential(request, good, "node", NOW).refusal is Refusal.REPLAYED
    assert checker.check_credential(request, good, "other", NOW).refusal is Refusal.WRONG_SIGNATURE


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64), st.integers(0, (1 << 63) - 1))
def test_random_credentials_are_refused_and_nothing_is_raised(key: bytes, signature: bytes, number: int) -> None:
    verdict = verifier().check_credential(PublishItem(1, SID, RID), Credential(key, NOW, number, signature), "n", NOW)
    assert verdict.refusal in (Refusal.WRONG_SIGNATURE, Refusal.NO_KEY)


def test_points_for_which_anybody_can_sign_are_no_keys() -> None:
    prime = FIELD_PRIME
    d = -121665 * pow(121666, -1, prime) % prime

    def twice(y: int) -> int:
        """The y of a point added to itself, on the curve of Ed25519."""
        x_squared = (y * y - 1) * pow(d * y * y + 1, -1, prime)
        return (y * y + x_squared) * pow(2 + x_squared - y * y, -1, prime) % prime

    for y in WEAK_Y:
        assert twice(twice(twice(y))) == 1, "eight times the point is nothing"
        for sign in (0, 1 << 255):
            raw = (y | sign).to_bytes(32, "little")
            with pytest.raises(ValueError, match="small order"):
                PublicKey(raw)
            credential = Credential(raw, NOW, 1, raw + bytes(32))
            verdict = verifier().check_credential(PublishItem(1, SID, RID), credential, "n", NOW)
            assert verdict.refusal is Refusal.NO_KEY
    for alias in (prime, prime + 1):
        with pytest.raises(ValueError, match="small order"):
            PublicKey(alias.to_bytes(32, "little"))


# Replay windows.


@given(st.lists(st.integers(0, 200), max_size=100), st.integers(1, 64))
def test_the_window_agrees_with_a_set(numbers: list[int], size: int) -> None:
    window = ReplayWindow(size)
    seen: set[int] = set()
    for number in numbers:
        fresh = number not in seen and (not seen or number > max(seen) - size)
        assert window.accept(number) is fresh
        if fresh:
            seen.add(number)


def test_a_jump_of_any_length_is_cheap() -> None:
    window = ReplayWindow(64)
    assert window.accept(1)
    assert window.accept((1 << 63) - 1)
    assert not window.accept(1)


def test_the_guard_forgets_the_stream_used_longest_ago() -> None:
    guard = ReplayGuard(8, max_streams=2)
    assert guard.accept(b"a", 1)
    assert guard.accept(b"b", 1)
    assert guard.accept(b"a", 2)
    assert guard.accept(b"c", 1)
    assert guard.forgotten == 1
    assert not guard.accept(b"a", 2)
    assert guard.accept(b"b", 1)
