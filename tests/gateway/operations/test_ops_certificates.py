"""What `psph doctor` says of certificates and keys, each on files that really have the trouble."""

import shutil
import time
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.config import check
from gateway.operations.checks_tls import SOON, Secured, check_certificates, check_keys, secured_ports
from gateway.operations.doctor import examine
from gateway.operations.findings import Finding, FindingLevel
from psirp_stack.authentication.files import save_key_pair
from psirp_stack.authentication.keys import KeyPair
from serving.tls import TlsFiles
from tests.gateway.access.test_access_tls import make
from tests.gateway.operations.test_ops_doctor import as_nobody, verdicts

TLS = {"certificate": "certificate.pem", "key": "key.pem"}
LONG = (-1.0, 90.0)


def found(files: TlsFiles, public_url: str | None = None, *, behind_proxy: bool = False) -> list[Finding]:
    return list(check_certificates([Secured("hub", files, public_url, behind_proxy)], time.time()))


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    assert finding.fix or finding.verdict is FindingLevel.GOOD
    return finding


def test_one_that_is_well_is_said_to_be(tmp_path: Path) -> None:
    finding = only(found(make(tmp_path, "x", days=LONG)))
    assert finding.verdict is FindingLevel.GOOD
    assert "can be used until" in finding.text


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    files = make(tmp_path, "x", days=LONG)
    files.certificate.rename(tmp_path / "away")
    finding = only(found(files))
    assert finding.verdict is FindingLevel.BAD
    assert "certificate.pem is not there" in finding.text
    assert "hub.tls.certificate" in finding.fix
    (tmp_path / "away").rename(files.certificate)
    files.key.unlink()
    finding = only(found(files))
    assert "hub.tls.key" in finding.fix
    files = make(tmp_path, "x", days=LONG)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    shown = as_nobody(
        "import time\nfrom pathlib import Path\nfrom gateway.operations.checks_tls import *\n"
        f"files = TlsFiles(Path({str(files.certificate)!r}), Path({str(files.key)!r}))\n"
        "for f in check_certificates([Secured('hub', files)], time.time()): print(f.verdict.value, f.text, '->', f.fix)"
    )
    assert shown.startswith("bad")
    assert "Permission denied" in shown
    assert "chown 65534" in shown


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    files = make(tmp_path, "x", days=LONG)
    files.key.chmod(0o640)
    finding = only(found(files))
    assert finding.verdict is FindingLevel.BAD
    assert "mode 0640" in finding.text
    assert f"chmod 600 {files.key}" in finding.fix


def test_a_key_of_another_certificate_one_with_a_password_and_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = make(tmp_path, "x", days=LONG)
    shutil.copy(make(tmp_path / "other", "y", days=LONG).key, files.key)
    finding = only(found(files))
    assert finding.verdict is FindingLevel.BAD
    assert "does not belong to" in finding.text
    finding = only(found(make(tmp_path, "x", days=LONG, password=b"secret")))
    assert "password" in finding.text
    assert "openssl pkey" in finding.fix
    files.key.write_text("nothing")
    assert "no private key" in only(found(files)).text
    files = make(tmp_path, "x", days=LONG)
    files.certificate.write_text("nothing")
    assert "no certificate" in only(found(files)).text


@pytest.mark.parametrize(
    ("days", "verdict", "text"),
    [
        ((-90.0, -0.01), FindingLevel.BAD, "ended at"),
        ((-76.0, 13.9), FindingLevel.DOUBTFUL, "ends in 13 days"),
        ((-75.0, 14.1), FindingLevel.GOOD, "can be used until"),
        ((1.0, 90.0), FindingLevel.BAD, "cannot be used before"),
    ],
)
def test_one_that_ended_ends_soon_or_begins_later(
    tmp_path: Path, days: tuple[float, float], verdict: FindingLevel, text: str
) -> None:
    assert SOON.days == 14
    finding = only(found(make(tmp_path, "x", days=days)))
    assert (finding.verdict, text in finding.text) == (verdict, True), finding


def test_one_of_the_chain_that_ended(tmp_path: Path) -> None:
    (tmp_path / "issuer").mkdir()
    files = make(tmp_path, "x", days=LONG)
    issuer = make(tmp_path / "issuer", "issuer", days=(-90.0, -1.0))
    files.certificate.write_bytes(files.certificate.read_bytes() + issuer.certificate.read_bytes())
    finding = only(found(files))
    assert finding.verdict is FindingLevel.BAD
    assert "number 2 of its chain" in finding.text


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://hub.example/", True),
        ("https://HUB.example:8443/x", True),
        ("https://127.0.0.1/", True),
        ("https://a.wild.example/", True),
        ("https://b.a.wild.example/", False),
        ("https://wild.example/", False),
        ("https://other.example/", False),
        ("https://127.0.0.2/", False),
    ],
)
def test_one_for_another_name_than_the_public_url(tmp_path: Path, url: str, good: bool) -> None:
    files = make(tmp_path, "other.example", names=("hub.example", "*.wild.example"), days=LONG)
    finding = only(found(files, url))
    assert finding.verdict is (FindingLevel.GOOD if good else FindingLevel.BAD)
    if not good:
        assert "hub.public_url" in finding.text
        assert "subject alternative names" in finding.fix
        assert only(found(files, url, behind_proxy=True)).verdict is FindingLevel.DOUBTFUL


def test_a_public_url_that_is_http_while_the_port_is_not(tmp_path: Path) -> None:
    files = make(tmp_path, "x", names=("hub.example",), days=LONG)
    finding = only(found(files, "http://hub.example/"))
    assert finding.verdict is FindingLevel.BAD
    assert "write https" in finding.fix
    assert only(found(files, "http://hub.example/", behind_proxy=True)).verdict is FindingLevel.GOOD


def test_each_port_of_a_configuration_is_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "x", names=("hub.example", "chat.example"), days=LONG)
    document = {
        "node": {"name": "a"},
        "hub": {"public_url": "https://hub.example/", "tls": TLS},
        "admin": {"listen": "127.0.0.1:0", "tls": TLS},
        "web": {"listen": "127.0.0.1:0", "public_url": "https://elsewhere.example/", "tls": TLS},
    }
    findings = list(check_certificates(secured_ports(check(document, tmp_path)), time.time()))
    assert verdicts(findings) == [FindingLevel.GOOD, FindingLevel.GOOD, FindingLevel.BAD]
    assert "web.public_url" in findings[2].text
    assert secured_ports(check({"node": {"name": "a"}}, tmp_path)) == []


async def test_a_configuration_whose_certificate_cannot_be_used_says_how_to_mend_it(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[node]\nname = "a"\n[hub.tls]\ncertificate = "certificate.pem"\nkey = "key.pem"\n', encoding="utf-8"
    )
    files = make(tmp_path, "x", days=(-9.0, -1.0))
    files.key.chmod(0o644)
    findings = await examine(path, {})
    assert verdicts(findings) == [FindingLevel.BAD] * 3
    assert findings[0].fix == f"chmod 600 {files.key}"
    assert {"others can read this key" in one.text for one in findings} == {True, False}
    assert {"ended at" in one.text for one in findings} == {True, False}
    files.key.chmod(0o600)
    files.key.unlink()
    findings = await examine(path, {})
    assert any("put it there" in one.fix for one in findings)


def test_the_key_of_the_node_that_others_can_read(tmp_path: Path) -> None:
    save_key_pair(KeyPair.generate(), tmp_path / "gateway.key")
    config = check({"node": {"name": "a", "keys": {"signing": "gateway.key"}}}, tmp_path)
    assert verdicts(list(check_keys(config))) == [FindingLevel.GOOD]
    (tmp_path / "gateway.key").chmod(0o644)
    (finding,) = check_keys(config)
    assert finding.verdict is FindingLevel.BAD
    assert "chmod 600" in finding.fix
    assert list(check_keys(check({"node": {"name": "a"}}, tmp_path))) == []


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "x", days=(-1.0, 3.0))
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[store]\npath = "data"\n[hub]\nlisten = "127.0.0.1:0"\n[node]\nname = "a"\nroles = ["rendezvous"]\n'
        '[hub.tls]\ncertificate = "certificate.pem"\nkey = "key.pem"\n',
        encoding="utf-8",
    )
    assert main(["doctor", "-c", str(path), "--no-names"]) == 0
    said = capsys.readouterr().out
    assert "doubtful  certificates   [hub.tls]" in said
    assert "ends in 2 days" in said
    assert "-> have it renewed" in said
