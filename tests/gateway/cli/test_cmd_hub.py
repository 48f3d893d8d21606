"""`psph hub` as a process: it says where it is, serves, stops in bounded time, and what it acknowledged survives."""

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest

from gateway.cli.main import main
from storage import Database
from tests.gateway.access.test_access_tls import make, shown

TIMEOUT = 30
STOP_WITHIN = 15
OPTIONS = ("--allow-private", "--no-canary")


@contextmanager
def hub(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "gateway.cli.main", "hub", "--port", "0", "--data", str(data), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"hub at (?:https://hub\.example/x, listening on )?(https?://127\.0\.0\.1:\d+/)\n", line)
        assert match, line + (process.stderr.read() if process.stderr and process.poll() is not None else "")
        assert process.stdout.readline() == f"data in {data}\n"
        yield process, match[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=STOP_WITHIN)
    return process.returncode, errors


def ask(url: str, *fields: tuple[str, str]) -> tuple[int, str]:
    request = Request(url, data=urlencode(fields).encode() if fields else None)  # noqa: S310 - the hub started here
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def subscribe(url: str, callback: str, topic: str = "http://t.example/", verify: str = "sync") -> tuple[int, str]:
    fields = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback, "hub.verify": verify}
    return ask(url, *fields.items())


class _Confirms(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        challenge = parse_qs(urlsplit(self.path).query).get("hub.challenge", [""])[0].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(challenge)))
        self.end_headers()
        self.wfile.write(challenge)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def callback() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Confirms)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/cb"
    server.shutdown()
    thread.join()
    server.server_close()


def test_serves_admits_private_but_never_link_local_and_stops_gracefully(tmp_path: Path, callback: str) -> None:
    with hub(tmp_path / "new" / "data", "--allow-private") as (process, url):
        assert subscribe(url, callback) == (204, "")
        never = {
            "http://169.254.169.254/latest/meta-data": "metadata",
            "http://169.254.1.1/": "link-local",
            "http://[fe80::1]/": "link-local",
            "http://[::ffff:169.254.169.254]/": "metadata",
            "http://[fd00:ec2::254]/": "metadata",
            "http://0.0.0.0/": "unspecified",
        }
        for address, word in never.items():
            status, text = subscribe(url, address)
            assert (status, word in text) == (403, True), (address, text)
        assert json.loads(ask(url + "health")[1])["status"] == "ok"
        code, lines = stop(process)
        assert code == 0
        said = "request refused of 127.0.0.1: this hub does not contact the callback"
        assert all(said in line for line in lines.splitlines())
        assert len(lines.splitlines()) == len(never)


def test_loopback_and_private_are_refused_by_default(tmp_path: Path, callback: str) -> None:
    with hub(tmp_path) as (process, url):
        for address in (
            callback,
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
        ):
            status, text = subscribe(url, address)
            assert (status, "loopback or private" in text) == (403, True), (address, text)
        code, lines = stop(process, signal.SIGINT)
        assert (code, len(lines.splitlines())) == (0, 5)


def test_a_callback_that_never_answers_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, hub(tmp_path, *OPTIONS) as (process, url):
        where = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert subscribe(url, where, verify="async")[0] == 202
        answers: list[tuple[int, str]] = []
        waiting = threading.Thread(target=lambda: answers.append(subscribe(url, where, "http://t.example/2")))
        waiting.start()
        checks = [silent.accept()[0] for _ in range(2)]
        assert stop(process) == (0, "")
        for check in checks:
            check.close()
        waiting.join(TIMEOUT)
        assert answers == [(503, "the hub is stopping\n")]
    with Database.open(tmp_path / "hub.sqlite") as database:
        assert database.read("SELECT topic FROM verifications") == [("http://t.example/",)]


def test_what_was_acknowledged_survives_kill_minus_nine(tmp_path: Path, callback: str) -> None:
    with hub(tmp_path, "--allow-private") as (process, url):
        assert subscribe(url, callback)[0] == 204
        assert ask(url, ("hub.mode", "publish"), ("hub.url", "http://t.example/"))[0] == 204
        process.kill()
        process.wait()
    with hub(tmp_path, "--allow-private") as (process, url):
        assert stop(process) == (0, "")
    with Database.open(tmp_path / "hub.sqlite") as database:
        assert ("http://t.example/", callback) in database.read("SELECT topic, callback FROM subscriptions")
        assert ("http://t.example/",) in database.read("SELECT topic FROM pings")


def test_options_reach_the_hub(tmp_path: Path, callback: str) -> None:
    operator = tmp_path / "operator"
    operator.write_text("secret token\n", encoding="utf-8")
    operator.chmod(0o600)
    options = ["--topics", "http://only.example", "--no-canary", "--operator-token-file", str(operator)]
    with hub(tmp_path / "data", *options, "--allow-private") as (process, url):
        assert subscribe(url, callback, "http://only.example/feed") == (204, "")
        assert subscribe(url, callback, "http://t.example/") == (
            409,
            "not confirmed: this hub does not serve this topic\n",
        )
        assert json.loads(ask(url + "health")[1])["checks"]["canary"]["text"] == "switched off"
        assert ask(url + "diagnostics/dead-letters")[0] == 401
        request = Request(url + "diagnostics/dead-letters", headers={"Authorization": "Bearer secret token"})  # noqa: S310
        with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            assert json.load(answer) == {"dead_letters": []}
        assert stop(process) == (0, "")


def test_the_public_address_is_told_beside_the_real_one(tmp_path: Path) -> None:
    with hub(tmp_path, "--public-url", "https://hub.example/x") as (process, url):
        document = json.loads(ask(url + ".well-known/websub")[1])
        assert (document["hub"], document["health"]) == ("https://hub.example/x", "https://hub.example/x/health")
        assert stop(process) == (0, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "--port 70000: expected 0 to 65535"),
        (["--topics", "nonsense"], "--topics nonsense: it must begin with http"),
        (["--public-url", "ftp://x/"], "--public-url ftp://x/: it must begin with http"),
        (["--trusted-proxy", "proxy.example"], "expected IP addresses or networks"),
        (["--canary-interval", "0"], "above 0"),
        (["--operator-token-file", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_wrong_requests_are_one_line_and_exit_2(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hub", "--port", "0", "--data", str(tmp_path), *options]) == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1


def test_a_store_in_use_and_a_port_in_use_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Database.open(tmp_path / "hub.sqlite"):
        assert main(["hub", "--port", "0", "--data", str(tmp_path)]) == 2
        assert "is in use by process" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["hub", "--port", port, "--data", str(tmp_path / "other")]) == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.write_text("\n", encoding="utf-8")
    empty.chmod(0o600)
    assert main(["hub", "--port", "0", "--data", str(tmp_path), "--publisher-token-file", str(empty)]) == 2
    assert "is empty" in capsys.readouterr().err


def test_it_speaks_tls_and_serves_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    files = make(tmp_path, "first")
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n", encoding="utf-8")
    tokens.chmod(0o600)
    options = ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key), "--no-canary")
    with hub(tmp_path / "data", *options, "--publisher-token-file", str(tokens)) as (process, url):
        assert process.stdout is not None
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        with urlopen(f"{url}health", timeout=TIMEOUT, context=trusting) as answer:  # noqa: S310
            assert answer.status == 200
        with pytest.raises(OSError, match=r"reset|closed|Remote end"):
            urlopen(url.replace("https:", "http:"), timeout=TIMEOUT)  # noqa: S310
        assert shown(url) == "first"
        make(tmp_path, "second")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == f"certificate {files.certificate} is in use now\n"
        assert process.stdout.readline().startswith("reloaded")
        assert shown(url) == "second"
        files.key.write_bytes(b"half written")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline().startswith("reloaded")
        assert shown(url) == "second", "what cannot be used changes nothing"
        make(tmp_path, "third")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == f"certificate {files.certificate} is in use now\n"
        assert process.stdout.readline().startswith("reloaded")
        assert shown(url) == "third"
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        content = f"{url}?hub.mode=publish&hub.url=http://t.example/"
        headers = {"Authorization": "Bearer two", "Content-Type": "text/plain"}
        request = Request(content, data=b"x", headers=headers)  # noqa: S310
        with pytest.raises(HTTPError) as refused:
            urlopen(request, timeout=TIMEOUT, context=trusting)  # noqa: S310
        refused.value.close()
        assert refused.value.code == 403
        tokens.write_text("two\n", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline().startswith("reloaded")
        with urlopen(request, timeout=TIMEOUT, context=trusting) as answer:  # noqa: S310
            assert answer.status in (202, 204)
        tokens.unlink()
        process.send_signal(signal.SIGHUP)
        code, errors = stop(process)
        assert code == 0
        assert "the certificate is not replaced: " in errors
        assert f"--publisher-token-file: {tokens} cannot be read" in errors


def test_certificates_that_cannot_be_used_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = make(tmp_path, "x")
    start = ["hub", "--port", "0", "--data", str(tmp_path / "data")]
    assert main([*start, "--tls-key", str(files.key)]) == 2
    assert "give both" in capsys.readouterr().err
    files.key.chmod(0o644)
    assert main([*start, "--tls-key", str(files.key), "--tls-certificate", str(files.certificate)]) == 2
    assert "chmod 600" in capsys.readouterr().err
    assert main([*start, "--tls-key", str(files.key), "--tls-certificate", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
