"""`psph hub`: run the WebSub/PuSH hub alone."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import uvloop

from gateway.admin.config import AdminConfig
from gateway.cli.errors import CommandError
from gateway.cli.traces import traced
from gateway.hub_alone import HubAlone, HubAloneConfig
from gateway.operations.garbage import spare_what_is_loaded
from gateway.operations.places import listening_host, state_folder
from gateway.operations.ready import tell_ready
from gateway.sections import SectionError, proxies
from gateway.telemetry.complaints import Complaints
from gateway.telemetry.observers import both
from gateway.tracing import TraceForm, TracesConfig
from identifiers import DEFAULT_NAMING
from push_hub.bounds import SubscriptionBounds
from push_hub.canary import CanaryConfig
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.hub import Hub, HubConfig
from push_hub.intake import IntakeConfig
from push_hub.protocol.urls import UrlError, beginning, normalised
from push_hub.server import ServerConfig
from serving.proxies import ProxyHeader
from serving.tls import CertificateReplaced, TlsError, TlsFiles, TlsPort
from storage import StorageError
from storage.memory import LEAST_MIB, MIB, USUAL_MIB, MemoryBudget
from storage.private import PrivateFileError, read_secret_lines

MAX_PORT = 65_535
PORT = 8080
MIN_DOCUMENT = 1024


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a hub for WebSub and PubSubHubbub 0.4 and 0.3. Its endpoint is `/`; open it in a browser for help.\n"
        "Everything it acknowledges is on disk in DIR. SIGTERM stops it gracefully; SIGHUP looks at certificate and\n"
        "publishers' tokens again."
    )
    parser.epilog = (
        "examples:\n"
        "  psph hub                                                 port 8080, data in $XDG_STATE_HOME/psph/hub\n"
        "  psph hub --port 8080 --data var/hub --public-url https://hub.example/\n"
        "  psph hub --port 8080 --data /tmp/hub --allow-private     try it with callbacks on this machine\n"
        "  psph hub --port 8080 --data var/hub --topics https://blog.example/ --canary-interval 30\n"
        "  psph hub --port 443 --host 0.0.0.0 --data var/hub --public-url https://hub.example/ \\\n"
        "      --tls-certificate fullchain.pem --tls-key privkey.pem\n"
        "  psph hub --admin 127.0.0.1:8081                          with a dashboard and /metrics\n"
        "  psph hub --wait-ready && psph feed --hub http://127.0.0.1:8080/\n"
        "  curl http://127.0.0.1:8080/health                        is it well, and if not, why"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="P", help="port to listen on, 0: a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="where the hub keeps its store (default: $XDG_STATE_HOME/psph/hub, ~/.local/state/psph/hub)",
    )
    parser.add_argument(
        "--host", default=listening_host(), help="address to listen on (default: $PSPH_HOST, or 127.0.0.1)"
    )
    parser.add_argument("--public-url", metavar="URL", help="what subscribers are told is the hub's address")
    parser.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="speak https only, with this certificate and its chain (PEM); taken up again when the file changes",
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key (PEM), mode 0600")
    parser.add_argument(
        "--allow-private",
        action="store_true",
        help="let callbacks and topics be on loopback and private addresses (link-local and metadata: never)",
    )
    parser.add_argument(
        "--topics",
        action="append",
        default=[],
        metavar="URL",
        help="serve only topics below this address; may be repeated (others are told hub.mode=denied)",
    )
    parser.add_argument(
        "--only-own-self",
        action="store_true",
        help="deny a topic whose document names another address as its own (one fetch for each subscription)",
    )
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="URL=URL",
        help="topics below the first may say that their own address is below the second; may be repeated (without it,"
        " an address on another origin counts when it gives the same document)",
    )
    parser.add_argument("--poll", action="store_true", help="look by itself at topics whose publishers do not ping")
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="a proxy (or a network of them) that may say whose request it is; may be repeated",
    )
    parser.add_argument(
        "--proxy-header",
        choices=[header.value for header in ProxyHeader],
        default=ProxyHeader.X_FORWARDED_FOR.value,
        help="where trusted proxies say it (default: %(default)s)",
    )
    parser.add_argument(
        "--feeds", action="store_true", help="serve /feeds/URL: any feed with this hub in its links, for any reader"
    )
    parser.add_argument(
        "--admin",
        metavar="A:P",
        help="serve a dashboard, /metrics and health here; without tokens only programs of this machine may look",
    )
    parser.add_argument(
        "--admin-token-file", type=Path, metavar="FILE", help="tokens of operators of the dashboard, one a line"
    )
    intake = IntakeConfig()
    parser.add_argument(
        "--max-document",
        type=int,
        default=intake.max_body_bytes,
        metavar="BYTES",
        help="largest document of a topic that is fetched (default: %(default)s)",
    )
    bounds = SubscriptionBounds()
    parser.add_argument(
        "--max-subscriptions",
        type=int,
        default=bounds.in_all,
        metavar="N",
        help="take no new ones beyond these; what is there is always renewed (default: %(default)s)",
    )
    parser.add_argument(
        "--max-subscriptions-per-network",
        type=int,
        default=bounds.per_network,
        metavar="N",
        help="the same for those that one network (/24, /64) asked for; half of it for one address "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--memory-mb",
        type=int,
        default=USUAL_MIB,
        metavar="N",
        help="what caches and queues may take together, beside some 100 MB for the program (default: %(default)s)",
    )
    canary = CanaryConfig()
    parser.add_argument(
        "--canary-interval",
        type=float,
        default=canary.interval,
        metavar="S",
        help="seconds between two rounds of the canary (default: %(default)g)",
    )
    parser.add_argument(
        "--canary-deadline",
        type=float,
        default=canary.deadline,
        metavar="S",
        help="seconds after which a round that has not arrived turns /health red (default: %(default)g)",
    )
    parser.add_argument("--no-canary", action="store_true", help="send no canary; /health then knows less")
    parser.add_argument(
        "--operator-token-file", type=Path, metavar="FILE", help="a token in this file opens /diagnostics"
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="trace publications to a run below DIR")
    parser.add_argument(
        "--traces-rate", type=float, default=1.0, metavar="R", help="share of publications that is traced (default: 1)"
    )
    parser.add_argument(
        "--traces-format",
        choices=[form.value for form in TraceForm],
        default=TraceForm.AUTO.value,
        help="default: auto",
    )
    parser.add_argument(
        "--publisher-token-file",
        type=Path,
        metavar="FILE",
        help="publishers with a token of this file (one a line) may bring content along",
    )


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= MAX_PORT:
        raise CommandError(f"--port {args.port}: expected 0 to {MAX_PORT}")
    operator = _tokens(args.operator_token_file, "--operator-token-file")
    for option, urls in (("--topics", args.topics), ("--public-url", [args.public_url] if args.public_url else [])):
        for url in urls:
            try:
                normalised(url)
            except UrlError as error:
                raise CommandError(f"{option} {url}: it {error}") from error
    try:
        trusted = proxies("--trusted-proxy", tuple(args.trusted_proxy))
    except SectionError as error:
        raise CommandError(f"--trusted-proxy: {error.what}") from None
    if args.canary_interval <= 0 or args.canary_deadline <= 0:
        raise CommandError("--canary-interval and --canary-deadline take seconds above 0")
    if args.max_document < MIN_DOCUMENT:
        raise CommandError(f"--max-document {args.max_document}: expected at least {MIN_DOCUMENT} bytes")
    if args.max_subscriptions < 1 or args.max_subscriptions_per_network < 1:
        raise CommandError("--max-subscriptions and --max-subscriptions-per-network take numbers above 0")
    if args.memory_mb < LEAST_MIB:
        raise CommandError(f"--memory-mb {args.memory_mb}: expected at least {LEAST_MIB}")
    if not 0.0 <= args.traces_rate <= 1.0:
        raise CommandError(f"--traces-rate {args.traces_rate:g}: expected 0 to 1")
    traces = None
    if args.traces is not None:
        traces = TracesConfig(args.traces, args.traces_rate, TraceForm(args.traces_format))
    config = HubConfig(
        data=_data(args.data),
        memory=MemoryBudget(args.memory_mb * MIB),
        host=args.host,
        port=args.port,
        public_url=args.public_url,
        allow_private=args.allow_private,
        topics=tuple(args.topics),
        only_own_self=args.only_own_self,
        intake=IntakeConfig(max_body_bytes=args.max_document, poll=args.poll, aliases=_aliases(args.alias)),
        bounds=SubscriptionBounds(
            args.max_subscriptions,
            args.max_subscriptions_per_network,
            max(1, args.max_subscriptions_per_network // 2),
        ),
        canary=CanaryConfig(not args.no_canary, args.canary_interval, args.canary_deadline),
        server=ServerConfig(
            publisher_tokens=_tokens(args.publisher_token_file, "--publisher-token-file"),
            trusted_proxies=trusted,
            proxy_header=ProxyHeader(args.proxy_header),
        ),
        feeds=FeedProxyConfig(args.feeds),
        diagnostics=DiagnosticsConfig(operator_token=operator[0] if operator else None),
        tls=_tls(args.tls_certificate, args.tls_key),
    )
    complaints = Complaints("psph hub")
    try:
        with traced(traces, "hub", DEFAULT_NAMING) as told:
            hub = HubAlone(
                HubAloneConfig(config, _admin(args)),
                both(both(complaints.observe, _say_certificate), told.events),
                told.queues,
            )
            config.memory.enforce_on_stores()
            uvloop.run(_serve(hub, config, args.publisher_token_file))
    except StorageError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        admin = "" if args.admin is None else f" or {args.admin}"
        raise CommandError(
            f"cannot listen on {args.host} port {args.port}{admin}, or use {config.data}: {error}"
        ) from error
    finally:
        complaints.close()
    return 0


async def _serve(alone: HubAlone, config: HubConfig, token_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    hub = alone.hub
    await alone.start()
    try:
        where = "" if hub.url == hub.local_url else f", listening on {hub.local_url}"
        loop.add_signal_handler(signal.SIGHUP, _reloader(hub, config, token_file))
        print(f"hub at {hub.url}{where}", flush=True)
        if alone.admin is not None:
            print(f"dashboard at {alone.admin.url}, metrics at {alone.admin.url}metrics", flush=True)
        print(f"data in {config.data}", flush=True)
        spare_what_is_loaded()
        tell_ready()
        await stop.wait()
    finally:
        await alone.stop()


def _reloader(hub: Hub, config: HubConfig, token_file: Path | None) -> Callable[[], None]:
    def reload() -> None:
        try:
            server = replace(config.server, publisher_tokens=_tokens(token_file, "--publisher-token-file"))
        except CommandError as error:
            print(f"psph hub: not reloaded, everything stays as it is: {error}", file=sys.stderr, flush=True)
            return
        hub.reconfigure(server, config.tls)
        print("reloaded: certificate and tokens were looked at", flush=True)

    return reload


def _say_certificate(event: object) -> None:
    if isinstance(event, CertificateReplaced):
        print(f"certificate {event.certificate} is in use now", flush=True)


def _data(given: Path | None) -> Path:
    try:
        return state_folder("hub") if given is None else given
    except OSError as error:
        raise CommandError(str(error)) from None


def _admin(args: argparse.Namespace) -> AdminConfig | None:
    if args.admin is None:
        if args.admin_token_file is not None:
            raise CommandError("--admin-token-file: say with --admin where the dashboard is")
        return None
    host, colon, port = args.admin.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise CommandError(f"--admin {args.admin}: expected ADDRESS:PORT (port 0 for a free one)")
    try:
        ip_address(host)
        return AdminConfig(host, int(port), operator_tokens=_tokens(args.admin_token_file, "--admin-token-file"))
    except ValueError as error:
        text = str(error).replace("name viewer_tokens_file or operator_tokens_file", "give --admin-token-file")
        raise CommandError(f"--admin: {text}") from None


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CommandError("--tls-certificate and --tls-key belong together: give both")
    files = TlsFiles(certificate, key)
    try:
        TlsPort(files)
    except TlsError as error:
        raise CommandError(f"--tls-certificate: {error}") from error
    return files


def _aliases(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for text in given:
        here, equals, there = text.partition("=http")
        try:
            found.append((beginning(here), beginning(f"http{there}" if equals else "")))
        except UrlError as error:
            raise CommandError(f"--alias {text}: expected URL=URL; one of them {error}") from None
    return tuple(found)


def _tokens(path: Path | None, option: str) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return read_secret_lines(path)
    except PrivateFileError as error:
        raise CommandError(f"{option}: {error}") from None
