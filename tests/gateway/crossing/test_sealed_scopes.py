"""Publications that only gateways can read: bound to their item, and changed keys without a gap."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Profile
from gateway.cli.main import main
from gateway.protocols.psirp.envelope import ENVELOPE_VERSION, EnvelopeError, Header, seal
from gateway.protocols.psirp.scope_keys import MARK, KeyStep, ScopeKey, ScopeKeys, SealedScope, change
from identifiers import Identifier, ItemId
from psirp_stack.authentication.keys import KeyFileError

PREFIX = "http://example.com/private/"
SID = Identifier(bytes(31) + b"\x01")
ITEM, OTHER = (ItemId(SID, Identifier(bytes(31) + bytes((number,)))) for number in (2, 3))
HEADER = Header(ENVELOPE_VERSION, Profile.DOCUMENT, PREFIX + "feed", "text/plain")
OPEN = Header(ENVELOPE_VERSION, Profile.DOCUMENT, "http://example.com/feed", "text/plain")


def keys(number: int = 1, prefix: str | None = PREFIX, scope: Identifier | None = None) -> ScopeKeys:
    return ScopeKeys([SealedScope((ScopeKey(bytes((number,)) * 32),), prefix, scope)])


@given(st.binary(max_size=300))
def test_what_is_sealed_opens_where_the_key_is_and_shows_neither_name_nor_content(body: bytes) -> None:
    sealed = keys().put_up(ITEM, HEADER, b"secret " + body)
    assert sealed.startswith(MARK)
    assert b"secret" not in sealed
    assert b"example" not in sealed
    assert keys().opened(ITEM, sealed) == (HEADER, b"secret " + body)
    # Two gateways of a domain that bring the same publication make one version of it.
    assert keys().put_up(ITEM, HEADER, b"secret " + body) == sealed


def test_a_scope_is_sealed_by_its_identifier_too() -> None:
    scope = keys(prefix=None, scope=SID)
    assert scope.opened(ITEM, scope.put_up(ITEM, OPEN, b"x")) == (OPEN, b"x")
    elsewhere = ItemId(Identifier(bytes(32)), ITEM.rid)
    assert scope.put_up(elsewhere, OPEN, b"x") == seal(OPEN, b"x")


@given(st.integers(0, 400), st.integers(1, 255))
def test_what_was_changed_does_not_open(at: int, change: int) -> None:
    sealed = bytearray(keys().put_up(ITEM, HEADER, b"content" * 10))
    sealed[at % len(sealed)] ^= change
    with pytest.raises(EnvelopeError):
        keys().opened(ITEM, bytes(sealed))


def test_what_was_sealed_for_one_item_does_not_open_in_another() -> None:
    with pytest.raises(EnvelopeError, match="another item"):
        keys().opened(OTHER, keys().put_up(ITEM, HEADER, b"content"))


def test_what_should_be_sealed_and_is_not_does_not_count() -> None:
    with pytest.raises(EnvelopeError, match="not sealed"):
        keys().opened(ITEM, seal(HEADER, b"forged"))
    assert keys().opened(ITEM, seal(OPEN, b"for all")) == (OPEN, b"for all")


def test_the_key_of_one_scope_seals_nothing_of_another() -> None:
    both = ScopeKeys(
        [SealedScope((ScopeKey(bytes((number,)) * 32),), prefix) for number, prefix in ((1, PREFIX), (2, "http://b/"))]
    )
    made = keys(2, prefix=PREFIX).put_up(ITEM, HEADER, b"content")
    with pytest.raises(EnvelopeError, match="another scope"):
        both.opened(ITEM, made)
    with pytest.raises(EnvelopeError, match="not known here"):
        keys().opened(ITEM, made)


def test_a_key_is_changed_without_a_gap(tmp_path: Path) -> None:
    """Two gateways take every step at different times, and understand each other all the while."""
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"

    def understood() -> None:
        for one, other in ((a, b), (b, a)):
            sealed = ScopeKeys.load(one).put_up(ITEM, HEADER, b"content")
            assert ScopeKeys.load(other).opened(ITEM, sealed) == (HEADER, b"content")

    def give() -> None:
        b.unlink(missing_ok=True)
        b.touch(mode=0o600)
        b.write_bytes(a.read_bytes())

    change(a, PREFIX, None)
    give()
    first = ScopeKeys.load(a).put_up(ITEM, HEADER, b"content")
    for step in KeyStep:
        change(a, PREFIX, step)
        understood()
        give()
        understood()
    assert ScopeKeys.load(a).put_up(ITEM, HEADER, b"content") != first
    with pytest.raises(EnvelopeError, match="not known here"):
        ScopeKeys.load(a).opened(ITEM, first)


def test_steps_that_cannot_be_taken_are_told(tmp_path: Path) -> None:
    path = tmp_path / "sealed.toml"
    with pytest.raises(KeyFileError, match="no key yet"):
        change(path, PREFIX, KeyStep.SWITCH)
    change(path, PREFIX, None)
    change(path, str(SID), None)
    for step in (None, KeyStep.SWITCH, KeyStep.DROP):
        with pytest.raises(KeyFileError, match="key"):
            change(path, PREFIX, step)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="others can read"):
        ScopeKeys.load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[sealed]]\nkeys = ['AAAA']\nprefix = 'x'", "32 bytes"),
        ("[[sealed]]\nkeys = ['!']\nprefix = 'x'", "base64"),
        ("[[sealed]]\nkeys = []\nprefix = 'x'", "length >= 1"),
        (f"[[sealed]]\nkeys = ['{'A' * 43}=']", "either a prefix"),
        ("[[sealed]]\nkey = 'x'", "unknown field"),
        ("[[", "sealed.toml"),
    ],
)
def test_a_file_that_says_nothing_useful_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sealed.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(KeyFileError, match=said):
        ScopeKeys.load(path)


def test_the_command_makes_a_key_that_a_gateway_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sealed.toml"
    assert main(["keys", "seal", str(path), PREFIX]) == 0
    assert main(["keys", "seal", str(path), PREFIX, "--step", "next"]) == 0
    assert "next key opens" in capsys.readouterr().out
    assert ScopeKeys.load(path).put_up(ITEM, HEADER, b"x").startswith(MARK)
    assert main(["keys", "seal", str(path), PREFIX, "--step", "next"]) == 0
    path.chmod(0o644)
    assert main(["keys", "seal", str(path), PREFIX]) == 2
