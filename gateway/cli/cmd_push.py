"""`psph push`: be a subscriber or a publisher at any WebSub or PubSubHubbub hub."""

import argparse
import asyncio
import base64
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from gateway.cli.errors import CommandError
from gateway.discovery import DiscoveryError, Resolver, ResolverConfig
from gateway.discovery.own_hub import hub_of
from push_hub.client import (
    MIGRATIONS,
    ClientError,
    ClientSubscription,
    ClientSubscriptionStore,
    ReceivedDelivery,
    Subscriber,
    SubscriberConfig,
    SubscriptionState,
    callback_app,
    discover_topic,
    publish,
    publish_everywhere,
    send_request,
)
from push_hub.protocol.urls import UrlError, normalised
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database, StorageError
from storage.clock import steady
from storage.private import make_private_folder

EXIT_TOO_FEW = 1
EXIT_NOT_VERIFIED = 3
"""The hub took the request and never asked back: nothing can come."""
DATABASE_NAME = "push-client.sqlite"
LEAVE_PATIENCE = 3.0
TICK = 0.5

EXAMPLES = """
examples:
  psph push subscribe https://blog.example/feed --base https://me.example/push --listen 0.0.0.0:8090
        run a callback server that the hub reaches at https://me.example/push, print what arrives, Ctrl-C to leave
  psph push subscribe http://127.0.0.1:8000/feed --hub http://127.0.0.1:8080/ --count 1 --timeout 30 > feed.xml
        at this hub, whatever the page says; the callback is on this machine
  psph push subscribe TOPIC --hub HUB --callback https://me.example/cb --lease 3600
        only ask the hub; somebody else answers at the callback
        (with --timeout it ends with 1 when nothing came, and with 3 when the hub never asked the callback)
  psph push subscribe TOPIC --domain example.org
        at the hub of your own domain, which its record _psirp._tcp.example.org names
  psph push unsubscribe TOPIC --hub HUB --callback https://me.example/cb
  psph push publish https://blog.example/feed              tell every hub that the page names
  psph push publish TOPIC TOPIC2 --hub HUB                 tell this one
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Subscribe, unsubscribe and publish at any WebSub or PubSubHubbub hub, as any client would."
    parser.epilog = EXAMPLES
    what = parser.add_subparsers(dest="what", required=True, metavar="subscribe|unsubscribe|publish")

    subscribe = what.add_parser("subscribe", help="print what a topic publishes, or subscribe a callback to it")
    subscribe.add_argument("topic", metavar="URL", help="a page that names its hubs, or with --hub a topic")
    subscribe.add_argument("--hub", metavar="URL", help="subscribe here (default: where the page says)")
    subscribe.add_argument(
        "--domain", metavar="NAME", help="subscribe at the hub of your own domain, which its service record names"
    )
    subscribe.add_argument(
        "--name-server", metavar="A:P", help="with --domain: ask this one (default: those of this machine)"
    )
    subscribe.add_argument("--callback", metavar="URL", help="a callback that answers by itself: run none here")
    subscribe.add_argument("--listen", default="127.0.0.1:0", metavar="A:P", help="of the callback server here")
    subscribe.add_argument("--base", metavar="URL", help="where hubs reach it (default: where it listens)")
    subscribe.add_argument("--lease", type=int, metavar="S", help="seconds to ask for (default: the hub's choice)")
    subscribe.add_argument("--count", type=int, metavar="N", help="stop after N publications")
    subscribe.add_argument("--timeout", type=float, metavar="S", help="stop after S seconds")
    subscribe.add_argument("--json", action="store_true", help="one JSON object a line")
    subscribe.add_argument("--data", type=Path, metavar="DIR", help="keep subscriptions here, and do not end them")

    unsubscribe = what.add_parser("unsubscribe", help="end the subscription of a callback")
    unsubscribe.add_argument("topic", metavar="TOPIC")
    unsubscribe.add_argument("--hub", metavar="URL", help="where it was made (default: where the page says)")
    unsubscribe.add_argument("--callback", required=True, metavar="URL")

    ping = what.add_parser("publish", help="tell hubs that topics have changed")
    ping.add_argument("topics", nargs="+", metavar="URL")
    ping.add_argument("--hub", action="append", metavar="URL", help="may be repeated (default: where the page says)")


def run(args: argparse.Namespace) -> int:
    work = {"subscribe": _subscribe, "unsubscribe": _unsubscribe, "publish": _publish}[args.what]
    if getattr(args, "count", None) is not None and args.count < 1:
        raise CommandError(f"--count {args.count}: expected at least 1")
    try:
        return asyncio.run(_with_client(args, work))
    except ClientError as error:
        print(f"psph push: {error}", file=sys.stderr)
        return 1
    except (StorageError, OSError) as error:
        raise CommandError(str(error)) from None


async def _with_client(
    args: argparse.Namespace, work: Callable[[argparse.Namespace, OutboundClient], Awaitable[int]]
) -> int:
    # A person at a shell may reach what is on their own network; a hub may not.
    client = OutboundClient(ClientConfig(policy=AddressPolicy(True)))
    try:
        return await work(args, client)
    finally:
        await client.close()


async def _publish(args: argparse.Namespace, client: OutboundClient) -> int:
    failed = 0
    topics = [_url(topic) for topic in args.topics]
    if args.hub:
        for hub in map(_url, args.hub):
            try:
                status = await publish(client, hub, topics)
                print(f"{hub} took {len(topics)} ({status})")
            except ClientError as error:
                failed += 1
                print(f"psph push: {error}", file=sys.stderr)
        return 1 if failed else 0
    for topic in topics:
        for hub, trouble in (await publish_everywhere(client, topic)).items():
            failed += trouble is not None
            print(f"{hub} took {topic}" if trouble is None else f"{hub}: {trouble}")
    return 1 if failed else 0


async def _unsubscribe(args: argparse.Namespace, client: OutboundClient) -> int:
    topic, hub = await _topic_and_hub(args, client)
    status = await send_request(client, hub, "unsubscribe", topic, _url(args.callback), None, None)
    print(f"{hub} answered {status}; it now asks {args.callback} whether that is meant")
    return 0


async def _own_hub(args: argparse.Namespace) -> str:
    policy = AddressPolicy(True)
    servers: dict[str, Any] = {}
    if args.name_server is not None:
        host, port = _address("--name-server", args.name_server)
        servers = {"nameservers": (host,), "port": port}
    try:
        return await hub_of(args.domain, Resolver(ResolverConfig(**servers), policy), policy)
    except DiscoveryError as error:
        raise CommandError(f"--domain: {error}") from None


async def _subscribe(args: argparse.Namespace, client: OutboundClient) -> int:
    if args.domain is not None:
        if args.hub is not None:
            raise CommandError("--hub and --domain both say which hub: give one")
        args.hub = await _own_hub(args)
    elif args.name_server is not None:
        raise CommandError("--name-server is asked for a --domain: name one")
    if args.callback is not None:
        topic, hub = await _topic_and_hub(args, client)
        status = await send_request(client, hub, "subscribe", topic, _url(args.callback), None, args.lease)
        print(f"{hub} answered {status}; it now asks {args.callback} whether that is meant")
        return 0
    async with AsyncExitStack() as stack:
        return await _receive(args, client, stack)


async def _receive(args: argparse.Namespace, client: OutboundClient, stack: AsyncExitStack) -> int:
    """Run a callback server until there is enough of it."""
    host, port = _address("--listen", args.listen)
    folder = args.data
    if folder is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-push-")))
    make_private_folder(folder, (DATABASE_NAME,))
    subscriptions = ClientSubscriptionStore(stack.enter_context(Database.open(folder / DATABASE_NAME, MIGRATIONS)))
    enough = asyncio.Event()
    taken = 0

    async def receive(delivery: ReceivedDelivery) -> None:
        nonlocal taken
        if not enough.is_set():
            _print(delivery, as_json=args.json)
            taken += 1
            if taken == args.count:
                enough.set()

    runner = web.AppRunner(callback_app(subscriptions, receive, steady), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port).start()
    address, number = runner.addresses[0][:2]
    base = args.base or (f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}")
    subscriber = Subscriber(subscriptions, client, SubscriberConfig(_url(base), lease=args.lease), steady)
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, enough.set)
    subscription = await (
        subscriber.subscribe_at(_url(args.hub), _url(args.topic))
        if args.hub
        else subscriber.subscribe(_url(args.topic))
    )
    print(f"asked {subscription.hub} for {subscription.topic}; callbacks at {base}", file=sys.stderr, flush=True)
    await subscriber.start()
    stack.push_async_callback(subscriber.stop)
    if not await _until_enough(subscriptions, subscription, enough, args.timeout):
        return EXIT_TOO_FEW
    now = subscriptions.by_topic(subscription.topic, subscription.hub)
    if args.data is None:
        await _leave(subscriptions, subscriber, subscription)
    code, words = _ending(now, taken, args, base, interrupted=enough.is_set())
    if words:
        print(f"psph push: {words}", file=sys.stderr, flush=True)
    return code


def _ending(
    subscription: ClientSubscription | None, taken: int, args: argparse.Namespace, base: str, *, interrupted: bool
) -> tuple[int, str]:
    """The exit code, and what there is to say when less came than was wanted."""
    if subscription is not None and subscription.state is SubscriptionState.ASKED:
        return EXIT_NOT_VERIFIED, (
            f"not verified: the hub took the request and never asked the callback at {base}. Can it reach that address "
            "(--base)? A hub that does not contact private addresses says so at its own terminal"
        )
    wanted = args.count or (0 if interrupted else 1)
    if taken >= wanted:
        return 0, ""
    came = "nothing came" if not taken else f"only {taken} of {wanted} came"
    if subscription is None:
        return EXIT_TOO_FEW, came
    return EXIT_TOO_FEW, (
        f"{came}: the subscription is verified; what a psph hub says of the topic: "
        f"{subscription.hub.rstrip('/')}/diagnostics/topic?topic={quote(subscription.topic)}"
    )


async def _until_enough(
    subscriptions: ClientSubscriptionStore,
    subscription: ClientSubscription,
    enough: asyncio.Event,
    patience: float | None,
) -> bool:
    """Wait for the end; False when the hub denied the subscription."""
    said = subscription.state
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while not enough.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), TICK)
                now = subscriptions.by_topic(subscription.topic, subscription.hub)
                if now is not None and now.state is not said:
                    said = now.state
                    print(f"{said}: {now.reason}", file=sys.stderr, flush=True)
                if said is SubscriptionState.DENIED:
                    return False
    return True


async def _leave(
    subscriptions: ClientSubscriptionStore, subscriber: Subscriber, subscription: ClientSubscription
) -> None:
    """End the subscription politely, without waiting long for a hub that does not ask back."""
    current = subscriptions.by_topic(subscription.topic, subscription.hub)
    if current is None or current.state is not SubscriptionState.ACTIVE:
        return
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(LEAVE_PATIENCE):
            await subscriber.unsubscribe(current)
            current = subscriptions.by_topic(subscription.topic, subscription.hub)
            while current is not None and current.state is SubscriptionState.LEAVING:
                await asyncio.sleep(0.02)
                current = subscriptions.by_topic(subscription.topic, subscription.hub)


async def _topic_and_hub(args: argparse.Namespace, client: OutboundClient) -> tuple[str, str]:
    topic = _url(args.topic)
    if args.hub:
        return topic, _url(args.hub)
    found = await discover_topic(client, topic)
    return found.topic, found.hubs[0]


def _print(delivery: ReceivedDelivery, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(delivery.body if delivery.body.endswith(b"\n") else delivery.body + b"\n")
        sys.stdout.buffer.flush()
        return
    said: dict[str, object] = {
        "topic": delivery.topic,
        "content_type": delivery.content_type,
        "bytes": len(delivery.body),
        "received": time.time(),
    }
    try:
        said["content"] = delivery.body.decode()
    except UnicodeDecodeError:
        said["base64"] = base64.b64encode(delivery.body).decode()
    print(json.dumps(said), flush=True)


def _address(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise CommandError(f"{option} {text}: expected ADDRESS:PORT (port 0 for a free one)")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url(text: str) -> str:
    try:
        return normalised(text)
    except UrlError as error:
        raise CommandError(f"{text[:200]} {error}") from None
