"""`psph keys`: files that only their owner reads, nothing overwritten, errors in one line."""

import json
import stat
import time
from pathlib import Path

import pytest

from gateway.cli.main import main
from psirp_stack.authentication.files import load_key_pair, load_public_key, load_trusted
from psirp_stack.authentication.keys import key_hash
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.grant_files import load_grant
from psirp_stack.control.messages import LinkState
from psirp_stack.control.role_grants import RoleHolder, RoleTrust
from psirp_stack.node.config import load


def keys(folder: Path, *arguments: str) -> int:
    return main(["keys", "--dir", str(folder), *arguments])


def shown(capsys: pytest.CaptureFixture[str], folder: Path, name: str) -> dict[str, str]:
    capsys.readouterr()
    assert keys(folder, "show", name, "--json") == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)
    return found


def test_a_new_key_is_private_and_can_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert keys(folder, "new", "newsroom") == 0
    for path, mode in ((folder, 0o700), (folder / "newsroom.key", 0o600), (folder / "newsroom.pub", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    description = shown(capsys, folder, "newsroom")
    pair = load_key_pair(folder / "newsroom.key")
    assert description["kind"] == "own"
    assert description["hash"] == pair.hash.hex() == key_hash(bytes.fromhex(description["public_key"])).hex()
    assert b"PRIVATE" not in (folder / "newsroom.pub").read_bytes()


def test_a_key_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "new", "a") == 0
    before = (tmp_path / "a.key").read_bytes()
    assert keys(tmp_path, "new", "a") == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (tmp_path / "a.key").read_bytes() == before


def test_trusting_a_key_lets_a_node_find_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    assert keys(theirs, "new", "alice") == 0
    assert keys(ours, "trust", str(theirs / "alice.pub")) == 0
    assert keys(ours, "trust", str(theirs / "alice.pub")) == 0, "the same again does no harm"
    trust = load_trusted(ours / "trusted")
    assert [key.hash.hex() for key in trust] == [shown(capsys, theirs, "alice")["hash"]]
    assert shown(capsys, ours, "alice")["kind"] == "trusted"
    assert keys(theirs, "new", "bob") == 0
    assert keys(ours, "trust", str(theirs / "bob.pub"), "--name", "alice") == 2
    assert keys(ours, "forget", "alice") == 0
    assert keys(ours, "forget", "alice") == 2
    assert len(load_trusted(ours / "trusted")) == 0


def test_list_shows_all_keys_and_goes_on_after_a_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "list") == 0
    for name in ("a", "b"):
        assert keys(tmp_path, "new", name) == 0
    assert keys(tmp_path, "trust", str(tmp_path / "b.pub"), "--name", "c") == 0
    capsys.readouterr()
    assert keys(tmp_path, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[::2] for line in lines] == [["own", "a"], ["own", "b"], ["trusted", "c"]]
    (tmp_path / "a.key").chmod(0o644)
    (tmp_path / "trusted" / "c.pub").write_bytes(b"nonsense")
    assert keys(tmp_path, "list", "--json") == 1
    captured = capsys.readouterr()
    assert [json.loads(line)["name"] for line in captured.out.splitlines()] == ["b"]
    assert "chmod 600" in captured.err
    assert "c.pub: no public key in PEM" in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("new", "../up"), "no name for a key"),
        (("new", ""), "no name for a key"),
        (("show", "nobody"), "no key nobody"),
        (("trust", "/nonexistent.pub"), "cannot read"),
    ],
)
def test_wrong_requests_give_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert keys(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "new", "a") == 0
    assert keys(tmp_path, "trust", str(tmp_path / "a.key"), "--name", "b") == 2
    assert "no public key in PEM" in capsys.readouterr().err
    huge = tmp_path / "huge.pub"
    huge.write_bytes(bytes(100_000))
    assert keys(tmp_path, "trust", str(huge)) == 2


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSPH_KEYS", str(tmp_path / "here"))
    assert main(["keys", "new", "a"]) == 0
    assert (tmp_path / "here" / "a.key").exists()
    monkeypatch.delenv("PSPH_KEYS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["keys", "new", "a"]) == 0
    assert (tmp_path / "config" / "psph" / "keys" / "a.key").exists()


def test_a_grant_of_roles_can_be_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "new", "domain") == 0
    assert keys(tmp_path, "new", "gate") == 0
    grant = ["grant", "gate-a", "rendezvous", "--by", "domain", "--to", "gate", "--out", str(tmp_path / "a.grant")]
    assert keys(tmp_path, *grant, "--days", "2") == 0
    assert "gate-a may be rendezvous until 20" in capsys.readouterr().out
    holder = RoleHolder(load_grant(tmp_path / "a.grant"), load_key_pair(tmp_path / "gate.key"))
    trust = RoleTrust(key=load_key_pair(tmp_path / "domain.key").public)
    said = holder.proven(LinkState("gate-a", 1, 1, int(ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY), ()))
    assert trust.belief(said, int(time.time() * 1000)).roles == ServiceRole.RENDEZVOUS
    assert keys(tmp_path, *grant) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert keys(tmp_path, *grant, "--days", "0") == 2


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_setup_makes_everything_that_a_node_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert keys(folder, "setup", "gate") == 0
    said = capsys.readouterr().out
    made = files(folder)
    assert set(made) == {"domain.secret", "domain.key", "domain.pub", "gate.key", "gate.pub", "trusted/gate.pub"}
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    lines = said[said.index("[domain]") :]
    file = tmp_path / "node.toml"
    file.write_text(f'name = "gate"\nlinks = [{{ udp = "192.0.2.1:4001", peer = "192.0.2.2:4001" }}]\n{lines}')
    assert main(["node", "-c", str(file), "--check"]) == 0, "what it says can be used as it is"
    assert made["domain.secret"].decode().strip() not in said
    other = tmp_path / "other"
    assert keys(other, "setup", "gate") == 0
    assert files(other)["domain.secret"] != made["domain.secret"]


def test_setup_grants_roles_that_are_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "setup", "gate", "--role", "rendezvous") == 0
    said = capsys.readouterr().out
    holder = RoleHolder(load_grant(tmp_path / "gate.grant"), load_key_pair(tmp_path / "gate.key"))
    trust = RoleTrust(key=load_public_key(tmp_path / "domain.pub"))
    state = holder.proven(LinkState("gate", 1, 1, int(ServiceRole.RENDEZVOUS), ()))
    assert trust.belief(state, int(time.time() * 1000)).roles == ServiceRole.RENDEZVOUS
    file = tmp_path / "node.toml"
    file.write_text(f'name = "gate"\nroles = ["rendezvous"]\ndata = "data"\n{said[said.index("[domain]") :]}')
    node = load(file)
    assert (node.domain.key, node.keys.grant) == (str(tmp_path / "domain.pub"), str(tmp_path / "gate.grant"))
    assert keys(tmp_path, "setup", "gate", "--role", "rendezvous") == 0, "a second time nothing is made"
    assert keys(tmp_path, "setup", "gate", "--member", "--role", "topology") == 2


def test_setup_keeps_what_is_there(tmp_path: Path) -> None:
    assert keys(tmp_path, "setup", "gate") == 0
    before = files(tmp_path)
    assert keys(tmp_path, "setup", "gate") == 0
    assert files(tmp_path) == before
    (tmp_path / "gate.pub").unlink()
    assert keys(tmp_path, "setup", "gate") == 0
    assert files(tmp_path) == before


def test_a_member_needs_the_domain_s_secret_and_not_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert keys(first, "setup", "one") == 0
    assert keys(second, "setup", "two", "--member") == 2
    assert "copy it from another node" in capsys.readouterr().err
    second.mkdir()
    secret = second / "domain.secret"
    secret.write_bytes((first / "domain.secret").read_bytes())
    secret.chmod(0o640)
    assert keys(second, "setup", "two", "--member") == 2
    assert "others can read" in capsys.readouterr().err
    secret.chmod(0o600)
    assert keys(second, "setup", "two", "--member") == 0
    assert set(files(second)) == {"domain.secret", "two.key", "two.pub", "trusted/two.pub"}


def test_a_node_is_not_called_like_the_domain_s_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "setup", "domain") == 2
    assert "another one" in capsys.readouterr().err
