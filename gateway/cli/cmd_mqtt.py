"""`psph mqtt`: run the MQTT broker alone."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.core import CoreConfig, GatewayCore
from gateway.operations.places import state_folder
from gateway.operations.ready import tell_ready
from gateway.protocols.mqtt.broker import BrokerConfig
from gateway.protocols.mqtt.protocol import MQTT, MqttProtocol
from gateway.protocols.mqtt.section import LOCAL_DOMAIN, MqttConfig, MqttPlace, MqttRedirect
from gateway.protocols.mqtt.users import KnownUsers, UsersFileError, read_users
from gateway.telemetry.complaints import Complaints
from gateway.web.server import WebConfig
from serving.tls import TlsFiles
from storage import StorageError
from storage.clock import steady
from storage.private import PrivateFileError, read_secret_lines

PORT = 1883
MAX_PORT = 65_535
EXAMPLES = """\
examples:
  psph mqtt                                             port 1883 of this machine, data in $XDG_STATE_HOME/psph/mqtt
  psph mqtt --port 0 --data /tmp/broker                 a free port, which it prints
  psph mqtt --websocket-port 8083                       ws://127.0.0.1:8083/mqtt as well, for browsers
  psph mqtt --host 0.0.0.0 --users users.txt            with passwords: mosquitto_passwd -c users.txt ana
  psph mqtt --host 0.0.0.0 --port 8883 --users users.txt --tls-certificate fullchain.pem --tls-key privkey.pem
  mosquitto_sub -t 'kitchen/#' -v                       then, elsewhere: mosquitto_pub -t kitchen/temp -m 21.5

In a gateway the broker is the section [mqtt]: its topics are then names of the gateway's domain, and what is published
reaches WebSub, chat, REST and the networks of other domains.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    defaults = BrokerConfig()
    parser.description = (
        "Run a broker for MQTT 3.1, 3.1.1 and 5.0 without a gateway around it. Messages of QoS 1 and 2 are\n"
        "acknowledged when they are on disk. SIGTERM stops it gracefully."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="P", help="port to listen on, 0: a free one (default: %(default)s)"
    )
    parser.add_argument("--websocket-port", type=int, metavar="P", help="also WebSockets, at the path /mqtt")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where everything is kept")
    parser.add_argument("--users", type=Path, metavar="FILE", help="lines as mosquitto_passwd writes them, mode 0600")
    parser.add_argument("--domain", default=LOCAL_DOMAIN, help="whose names the topics are (default: %(default)s)")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="speak TLS only, with this certificate")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key (PEM), mode 0600")
    parser.add_argument(
        "--max-packet",
        type=int,
        default=defaults.max_packet,
        metavar="BYTES",
        help="of a packet, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-keep-alive",
        type=int,
        default=defaults.max_keep_alive,
        metavar="SECONDS",
        help="what 5.0 clients are held to, 0: what they want (default: %(default)s)",
    )
    parser.add_argument("--refer", metavar="HOST:PORT", help="send every client to this broker instead")


def run(args: argparse.Namespace) -> int:
    try:
        config = _config(args)
        uvloop.run(_serve(config))
    except (StorageError, OSError, PrivateFileError, UsersFileError) as error:
        raise CommandError(str(error)) from error
    return 0


def _config(args: argparse.Namespace) -> CoreConfig:
    for port in (args.port, args.websocket_port or 0):
        if not 0 <= port <= MAX_PORT:
            raise CommandError(f"a port is a number from 0 to {MAX_PORT}, not {port}")
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise CommandError("--tls-certificate and --tls-key belong together")
    users = KnownUsers(allow_anonymous=True)
    if args.users is not None:
        users = KnownUsers(read_users(read_secret_lines(args.users)))
    tls = None if args.tls_key is None else TlsFiles(args.tls_certificate, args.tls_key)
    mqtt = MqttConfig(
        doors=(MqttPlace(args.host, args.port, tls),),
        websocket="" if args.websocket_port is None else "/mqtt",
        domain=args.domain,
        users=users,
        broker=BrokerConfig(max_packet=args.max_packet, max_keep_alive=args.max_keep_alive),
        redirect=None if args.refer is None else MqttRedirect(args.refer),
    )
    return CoreConfig(
        data=state_folder("mqtt") if args.data is None else args.data,
        protocols={MQTT.label: mqtt},
        known=(MQTT,),
        name="mqtt",
        web=None if args.websocket_port is None else WebConfig(args.host, args.websocket_port),
    )


async def _serve(config: CoreConfig) -> None:
    complaints = Complaints("psph mqtt")
    core = GatewayCore(config, steady, complaints.observe)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await core.prepare()
        await core.start()
        for door in core.protocol(MqttProtocol).doors():
            print(f"psph mqtt: {door.what} at {door.url}", flush=True)
        print(f"psph mqtt: data in {config.data}", file=sys.stderr, flush=True)
        tell_ready()
        await stopped.wait()
    finally:
        await core.stop()
        complaints.close()
