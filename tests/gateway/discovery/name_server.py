"""A real name server (BIND, from Debian's package bind9) for one test module: own zone, own keys, a free port.

It runs in the foreground in a temporary directory, listens on loopback only, forwards nothing and asks nobody.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rdatatype
import dns.tsigkeyring
import dns.update
import pytest

ZONE = "feeds.test"
SECRETS = {
    "gateway-key": "c2l4dGVlbiBieXRlcyBvciBtb3JlIG9mIGEgc2VjcmV0",
    "other-key": "YW5vdGhlciBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcyBvciBtb3Jl",
    "stranger-key": "YSBzZWNyZXQgdGhhdCBtYXkgY2hhbmdlIG5vdGhpbmcgYXQgYWxs",
}
ALLOWED = ("gateway-key", "other-key")
"""These may change the service records; `other-key` may change everything, as the domain's administrator."""

ZONE_FILE = """\
$ORIGIN feeds.test.
$TTL 120
@           SOA ns admin 1 3600 600 86400 30
@           NS  ns
ns          A   127.0.0.1
one         A   127.0.0.11
one         AAAA ::1
two         A   127.0.0.12
three       A   127.0.0.13
linklocal   A   169.254.169.254
alias       CNAME two
loop-a      CNAME loop-b
loop-b      CNAME loop-a
_psirp._tcp.fixed   SRV 10 60 4001 one
_psirp._tcp.fixed   SRV 10 20 4002 two
_psirp._tcp.fixed   SRV 20  0 4003 three
_psirp._tcp.none    SRV 0 0 0 .
_psirp._tcp.mixed   SRV 0 0 4001 nowhere
_psirp._tcp.mixed   SRV 1 0 0    one
_psirp._tcp.mixed   SRV 2 0 4001 alias
_psirp._tcp.mixed   SRV 3 0 4001 linklocal
_psirp._tcp.mixed   SRV 4 0 4001 loop-a
_psirp._tcp.mixed   SRV 5 0 0    .
_psirp._tcp.lost    SRV 0 0 4001 nowhere
_psirp._tcp.looped  CNAME loop-a
_psirp._tcp.aliased CNAME _psirp._tcp.fixed
_psirp._tcp.brief   5 SRV 0 0 4001 one
"""

CONFIGURATION = """\
{keys}
options {{
    directory "{directory}";
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    pid-file "{directory}/named.pid";
    session-keyfile none;
    recursion no;
    dnssec-validation no;
    notify no;
    allow-transfer {{ none; }};
    empty-zones-enable no;
}};
controls {{ }};
zone "feeds.test" {{
    type primary;
    file "{directory}/feeds.test.zone";
    update-policy {{
        grant gateway-key name _psirp._tcp.feeds.test. SRV;
        grant other-key zonesub ANY;
    }};
}};
"""


def why_not() -> str | None:
    """Why there can be no name server here; None: there can."""
    return None if _program() else "needs the name server `named` (Debian package bind9)"


def _program() -> str | None:
    # Debian puts it into sbin, which is not on everybody's path.
    return shutil.which("named", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def key_text(name: str, algorithm: str = "hmac-sha256", secret: str | None = None) -> str:
    return f'key "{name}" {{\n\talgorithm {algorithm};\n\tsecret "{secret or SECRETS[name]}";\n}};\n'


def free_port() -> int:
    """A port that is free for UDP and TCP alike."""
    for _ in range(100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
            stream.bind(("127.0.0.1", 0))
            port: int = stream.getsockname()[1]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
                try:
                    datagram.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
    raise AssertionError("no free port on loopback")


@dataclass
class NameServer:
    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def prepare(cls, directory: Path) -> "NameServer":
        (directory / "feeds.test.zone").write_text(ZONE_FILE)
        for name in SECRETS:
            path = directory / f"{name}.conf"
            path.touch(mode=0o600)
            path.write_text(key_text(name))
        return cls(directory, free_port())

    def start(self) -> None:
        program = _program()
        assert program is not None
        keys = "".join(key_text(name) for name in SECRETS)
        configuration = self.directory / "named.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(CONFIGURATION.format(keys=keys, directory=self.directory, port=self.port))
        log = self.directory / "named.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [program, "-g", "-4", "-n", "1", "-c", str(configuration)], stdout=output, stderr=output
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                query = dns.message.make_query(ZONE, dns.rdatatype.SOA)
                dns.query.tcp(query, "127.0.0.1", timeout=1, port=self.port)
                return
            except (OSError, EOFError, dns.exception.DNSException):
                self._pause()
        tail = log.read_text(errors="replace")[-2000:]
        self.stop()
        if "permission denied" in tail:
            pytest.skip("the name server may not use a temporary directory here (a security module forbids it)")
        raise AssertionError(f"the name server did not come up:\n{tail}")

    def _pause(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(0.02)
        except subprocess.TimeoutExpired:
            return

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def key_file(self, name: str = "gateway-key") -> Path:
        return self.directory / f"{name}.conf"

    def services(self, domain: str = ZONE) -> set[str]:
        """The service records that stand there, as text, asked of the server itself."""
        return {record for record, _ in self.services_with_ttl(domain)}

    def services_with_ttl(self, domain: str = ZONE) -> set[tuple[str, int]]:
        query = dns.message.make_query(f"_psirp._tcp.{domain}.", dns.rdatatype.SRV)
        response = dns.query.tcp(query, "127.0.0.1", timeout=5, port=self.port)
        return {(record.to_text(), int(rrset.ttl)) for rrset in response.answer for record in rrset}

    def administrate(self, *changes: tuple[str, ...]) -> None:
        """Changes by the domain's administrator: ("add", name, ttl, type, text) or ("delete", name[, type[, text]])."""
        ring = dns.tsigkeyring.from_text({"other-key": ("hmac-sha256", SECRETS["other-key"])})
        update = dns.update.UpdateMessage(ZONE, keyring=ring, keyname="other-key")
        for verb, *rest in changes:
            (update.add if verb == "add" else update.delete)(*rest)
        response = dns.query.tcp(update, "127.0.0.1", timeout=5, port=self.port)
        assert response.rcode() == 0, response
