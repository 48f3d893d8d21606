"""Roles are granted: who claims one without the domain's word is not believed, counted, and named."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.authentication.keys import KeyFileError, KeyPair
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.grant_files import load_grant, save_grant
from psirp_stack.control.messages import LinkState
from psirp_stack.control.role_grants import GrantError, RoleHolder, RoleTrust, make_grant

DOMAIN = KeyPair(b"d" * 32)
NODE = KeyPair(b"n" * 32)
OTHER = KeyPair(b"o" * 32)
BOTH = int(ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY)
LATER = 1_000
TRUST = RoleTrust(key=DOMAIN.public)


def claim(node: str = "a", roles: int = BOTH, **more: object) -> LinkState:
    return LinkState(node, 1, 1, roles, (("b", 1500),), **more)  # type: ignore[arg-type]


def proven(roles: int = BOTH) -> LinkState:
    return RoleHolder(make_grant(DOMAIN, "a", BOTH, NODE.public, LATER), NODE).proven(claim(roles=roles))


def test_nobody_is_believed_whom_nobody_names() -> None:
    belief = RoleTrust().belief(claim(), 0)
    assert belief.roles == 0
    assert "shows no grant" in belief.doubt


def test_the_configuration_names_who_is_believed_and_for_what() -> None:
    trust = RoleTrust({ServiceRole.RENDEZVOUS: ["a"], ServiceRole.TOPOLOGY: ["b"]})
    assert trust.belief(claim("a"), 0).roles == ServiceRole.RENDEZVOUS
    assert trust.belief(claim("a"), 0).doubt
    assert trust.belief(claim("b", ServiceRole.TOPOLOGY), 0).roles == ServiceRole.TOPOLOGY
    assert not trust.belief(claim("b", ServiceRole.TOPOLOGY), 0).doubt
    assert trust.belief(claim("c"), 0).roles == 0


def test_a_grant_is_believed_until_it_ends() -> None:
    assert TRUST.belief(proven(), LATER - 1).roles == BOTH
    assert TRUST.belief(proven(), LATER - 1).until_ms == LATER
    assert TRUST.belief(proven(), LATER).roles == 0
    assert RoleTrust().belief(proven(), 0).roles == 0  # no key to check it with


def test_what_a_grant_does_not_name_is_not_believed() -> None:
    grant = make_grant(DOMAIN, "a", ServiceRole.TOPOLOGY, NODE.public, LATER)
    belief = TRUST.belief(RoleHolder(grant, NODE).proven(claim()), 0)
    assert belief.roles == ServiceRole.TOPOLOGY
    assert "topology" in belief.doubt


def test_a_grant_that_was_read_from_the_wire_is_of_no_use() -> None:
    seen = proven().proof
    assert seen is not None
    copied = (
        claim("b", proof=seen),  # by another node
        msgspec.structs.replace(claim("a"), number=2, proof=seen),  # in the holder's name
        msgspec.structs.replace(proven(), neighbours=(("evil", 1500),)),
        msgspec.structs.replace(claim("a"), proof=msgspec.structs.replace(seen, signature=bytes(64))),
    )
    assert [TRUST.belief(state, 0).roles for state in copied] == [0] * len(copied)


def test_a_grant_of_another_key_does_not_count() -> None:
    for signed_by in (NODE, OTHER):
        grant = make_grant(signed_by, "a", BOTH, NODE.public, LATER)
        assert TRUST.belief(RoleHolder(grant, NODE).proven(claim()), 0).roles == 0


def test_a_grant_for_another_key_cannot_be_held() -> None:
    with pytest.raises(GrantError, match="another key"):
        RoleHolder(make_grant(DOMAIN, "a", BOTH, OTHER.public, LATER), NODE)


@given(st.integers(0, 1 << 63), st.data())
def test_no_changed_grant_is_believed(bit: int, data: st.DataObject) -> None:
    state = proven()
    assert state.proof is not None
    grant = state.proof.grant
    field = data.draw(st.sampled_from(("key", "signature", "until_ms", "roles")))
    value = getattr(grant, field)
    if isinstance(value, bytes):
        place = bit % (8 * len(value))
        changed: object = (int.from_bytes(value, "big") ^ (1 << place)).to_bytes(len(value), "big")
    else:
        changed = value ^ (1 << bit % 8)
    forged = msgspec.structs.replace(
        state, proof=msgspec.structs.replace(state.proof, grant=msgspec.structs.replace(grant, **{field: changed}))
    )
    assert TRUST.belief(forged, 0).roles == 0


def test_a_grant_is_kept_in_a_file(tmp_path: Path) -> None:
    grant = make_grant(DOMAIN, "a", BOTH, NODE.public, LATER)
    save_grant(grant, tmp_path / "a.grant")
    assert load_grant(tmp_path / "a.grant") == grant
    with pytest.raises(KeyFileError, match="not overwritten"):
        save_grant(grant, tmp_path / "a.grant")
    for text in ("", "{}", '{"node": "a", "roles": ["king"], "key": "", "until_ms": 1, "signature": ""}', "[" * 5000):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(KeyFileError):
            load_grant(tmp_path / "bad")
    with pytest.raises(KeyFileError, match="cannot read"):
        load_grant(tmp_path / "nothing")
