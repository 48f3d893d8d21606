"""TLS on the ports of hub, administration and web: certificates made here, and replaced while the ports are open."""

import datetime
import os
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession, TCPConnector
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.config import ConfigError, check
from gateway.gateway import Gateway
from gateway.operations.reload import ReloadPlan, apply_reload, in_force
from push_hub.canary import CanaryConfig
from push_hub.hub import Hub, HubConfig
from serving.tls import CertificateRefused, CertificateReplaced, TlsFiles, TlsPort
from tests.waiting import until


def make(
    folder: Path,
    name: str,
    *,
    password: bytes | None = None,
    names: tuple[str, ...] = (),
    days: tuple[float, float] = (-1, 1),
) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1 and `names`, good from and until so many days from now, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    known_as = [x509.IPAddress(ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / "certificate.pem", folder / "key.pem", look_every=0.01)
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    for path, content in (
        (
            files.key,
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden),
        ),
        (files.certificate, certificate.public_bytes(serialization.Encoding.PEM)),
    ):
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        fresh.replace(path)
    return files


def shown(url: str) -> str:
    """The name in the certificate that a port shows."""
    host, port = url.removeprefix("https://").rstrip("/").split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as secure:
        der = secure.getpeercert(binary_form=True)
        assert der is not None
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
        name = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        return str(name)


async def test_the_hub_speaks_tls_and_takes_up_new_files(tmp_path: Path) -> None:
    import asyncio

    files = make(tmp_path, "first")
    told: list[object] = []
    config = HubConfig(tmp_path / "data", allow_private=True, canary=CanaryConfig(enabled=False), tls=files)
    hub = Hub(config, observer=told.append)
    await hub.start()
    try:
        assert hub.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        async with ClientSession(connector=TCPConnector(ssl=trusting)) as http, http.get(f"{hub.url}health") as answer:
            assert answer.status == 200
        async with ClientSession() as http:
            with pytest.raises(ClientConnectionError):
                await http.get(hub.url.replace("https:", "http:"))
        assert await asyncio.to_thread(shown, hub.url) == "first"
        files.key.write_bytes(b"half written")
        await until(lambda: any(isinstance(event, CertificateRefused) for event in told))
        assert await asyncio.to_thread(shown, hub.url) == "first", "what cannot be used changes nothing"
        make(tmp_path, "second")
        await until(lambda: any(isinstance(event, CertificateReplaced) for event in told))
        assert await asyncio.to_thread(shown, hub.url) == "second"
    finally:
        await hub.stop()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    document = {
        "node": {"name": "a"},
        "hub": {"tls": {"certificate": "certificate.pem", "key": "key.pem"}},
    }
    for spoil, text in (
        (lambda: None, "cannot be read"),
        (lambda: make(tmp_path, "x", password=b"secret"), "no certificate and its key"),
        (lambda: make(tmp_path, "x") and (tmp_path / "key.pem").chmod(0o644), "chmod 600"),
        (
            lambda: (tmp_path / "key.pem").chmod(0o600) or (tmp_path / "certificate.pem").write_text("x"),
            "no certificate",
        ),
    ):
        spoil()
        with pytest.raises(ConfigError, match=r"hub\.tls") as error:
            check(document, tmp_path)
        assert text in str(error.value)
    make(tmp_path, "x")
    assert check(document, tmp_path).hub.tls is not None
    assert os.stat(tmp_path / "key.pem").st_mode & 0o777 == 0o600  # noqa: PTH116


async def test_the_admin_port_speaks_tls_and_takes_up_new_files(tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "other").mkdir()
    make(tmp_path, "first")
    (tmp_path / "viewers.tokens").touch(mode=0o600)
    (tmp_path / "viewers.tokens").write_text("a-token\n")
    document: dict[str, object] = {
        "store": {"path": "data"},
        "hub": {"listen": "127.0.0.1:0", "canary": {"enabled": False}},
        "node": {"name": "a", "roles": ["rendezvous", "topology"]},
        "admin": {
            "listen": "127.0.0.1:0",
            "viewer_tokens_file": "viewers.tokens",
            "tls": {"certificate": "certificate.pem", "key": "key.pem", "look_every": 0.01},
        },
    }
    told: list[object] = []

    async def heard(kind: type) -> None:
        await until(lambda: any(isinstance(event, kind) for event in told))

    config = check(document, tmp_path)
    gateway = Gateway(config, observer=told.append)
    try:
        await gateway.start()
        assert gateway.admin is not None
        url = gateway.admin.url
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        async with ClientSession(connector=TCPConnector(ssl=trusting)) as http:
            async with http.get(f"{url}metrics") as answer:
                assert answer.status == 401
            async with http.get(f"{url}metrics", headers={"Authorization": "Bearer a-token"}) as answer:
                assert answer.status == 200
                assert "psph_info{" in await answer.text()
        async with ClientSession() as http:
            with pytest.raises(ClientConnectionError):
                await http.get(url.replace("https:", "http:"))
        (tmp_path / "key.pem").write_bytes(b"half written")
        await heard(CertificateRefused)
        assert await asyncio.to_thread(shown, url) == "first", "what cannot be used changes nothing"
        make(tmp_path, "second")
        await heard(CertificateReplaced)
        assert await asyncio.to_thread(shown, url) == "second"
        make(tmp_path / "other", "third")
        document["admin"]["tls"] = {"certificate": "other/certificate.pem", "key": "other/key.pem"}  # type: ignore[index]
        plan = apply_reload(gateway, config, check(document, tmp_path))
        assert plan == ReloadPlan(("admin.tls",), ())
        assert await asyncio.to_thread(shown, url) == "third"
        del document["admin"]["tls"]  # type: ignore[attr-defined]
        assert apply_reload(gateway, config, check(document, tmp_path)) == ReloadPlan((), ("admin.tls",))
        assert await asyncio.to_thread(shown, url) == "third", "a port does not change from https to http"
    finally:
        await gateway.stop()


def test_files_of_the_admin_port_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tls = {"certificate": "certificate.pem", "key": "key.pem"}
    document = {"node": {"name": "a"}, "admin": {"listen": "127.0.0.1:0", "tls": tls}}
    with pytest.raises(ConfigError, match=r"admin\.tls: .*cannot be read"):
        check(document, tmp_path)
    make(tmp_path, "x")
    admin = check(document, tmp_path).admin
    assert admin is not None
    assert admin.tls is not None


async def test_the_web_port_speaks_tls_and_takes_up_new_files(tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "other").mkdir()
    make(tmp_path, "first")
    document: dict[str, object] = {
        "gateway": {"domain": "a.example"},
        "store": {"path": "data"},
        "hub": {"listen": "127.0.0.1:0", "canary": {"enabled": False}},
        "node": {"name": "a", "roles": ["rendezvous", "topology"]},
        "web": {
            "listen": "127.0.0.1:0",
            "anyone_may_publish": True,
            "tls": {"certificate": "certificate.pem", "key": "key.pem", "look_every": 0.01},
        },
    }
    told: list[object] = []

    async def heard(kind: type) -> None:
        await until(lambda: any(isinstance(event, kind) for event in told))

    config = check(document, tmp_path)
    gateway = Gateway(config, observer=told.append)
    try:
        await gateway.start()
        assert gateway.web is not None
        url = gateway.web.url
        assert url.startswith("https://127.0.0.1:")
        assert gateway.hub.url.startswith("http:"), "each port has a section of its own"
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        topic = {"name": "https://news.example/feed"}
        async with ClientSession(connector=TCPConnector(ssl=trusting)) as http:
            async with http.get(f"{url}chat/") as answer:
                assert answer.status == 200
            async with http.post(f"{url}chat/session", json={"user": "anna"}, headers={"Origin": url[:-1]}) as answer:
                assert answer.status == 201
            async with http.get(f"{url}topics", params=topic) as stream:
                assert stream.status == 200
                async with http.post(f"{url}topics", params=topic, data=b"news") as answer:
                    assert answer.status == 201
                async with asyncio.timeout(20):
                    while b"news.example" not in (line := await stream.content.readline()) or b"data:" not in line:
                        assert line
        async with ClientSession() as http:
            with pytest.raises(ClientConnectionError):
                await http.get(url.replace("https:", "http:"))
        (tmp_path / "key.pem").write_bytes(b"half written")
        await heard(CertificateRefused)
        assert await asyncio.to_thread(shown, url) == "first", "what cannot be used changes nothing"
        make(tmp_path, "second")
        await heard(CertificateReplaced)
        assert await asyncio.to_thread(shown, url) == "second"
        make(tmp_path / "other", "third")
        document["web"]["tls"] = {"certificate": "other/certificate.pem", "key": "other/key.pem"}  # type: ignore[index]
        after = check(document, tmp_path)
        assert apply_reload(gateway, config, after) == ReloadPlan(("web.tls",), ())
        assert in_force(config, after).web == after.web
        assert await asyncio.to_thread(shown, url) == "third"
        del document["web"]["tls"]  # type: ignore[attr-defined]
        assert apply_reload(gateway, config, check(document, tmp_path)) == ReloadPlan((), ("web.tls",))
        assert await asyncio.to_thread(shown, url) == "third", "a port does not change from https to http"
    finally:
        await gateway.stop()


def test_files_of_the_web_port_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tls = {"certificate": "certificate.pem", "key": "key.pem"}
    document = {"node": {"name": "a"}, "web": {"listen": "127.0.0.1:0", "tls": tls}}
    with pytest.raises(ConfigError, match=r"web\.tls: .*cannot be read"):
        check(document, tmp_path)
    make(tmp_path, "x")
    web = check(document, tmp_path).web
    assert web is not None
    assert web.tls is not None


def test_a_pair_that_stays_unusable_is_told_once(tmp_path: Path) -> None:
    told: list[object] = []
    port = TlsPort(make(tmp_path, "first"), told.append)
    key = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(b"half written")
    assert [port.refresh(), port.refresh()] == [False, False]
    assert [type(event) for event in told] == [CertificateRefused]
    (tmp_path / "key.pem").write_bytes(key)
    assert port.refresh()
    (tmp_path / "key.pem").chmod(0o644)
    (tmp_path / "key.pem").write_bytes(key)
    assert [port.refresh(), port.refresh()] == [False, False]
    (tmp_path / "key.pem").chmod(0o600)
    assert port.refresh(), "it is tried again although nothing but its mode changed"
    assert [type(event) for event in told] == [CertificateRefused, CertificateReplaced] * 2
