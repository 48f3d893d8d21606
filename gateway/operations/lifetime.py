"""A gateway as a process: started, told to reload by SIGHUP, stopped by SIGTERM or SIGINT in bounded time."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from gateway.config import ConfigError
from gateway.gateway import Gateway, GatewayConfig
from gateway.operations.garbage import spare_what_is_loaded
from gateway.operations.ready import tell_ready
from gateway.operations.reload import apply_reload, in_force
from gateway.protocols.descriptor import OpenDoor
from push_hub.ports import OverloadedError
from storage import StorageError

STOP_MARGIN = 15.0
"""Seconds that stopping may take beyond `hub.stop_grace`: queued writes, the checkpoint of the stores."""
EXIT_FORCED = 1

Say = Callable[[str], None]


async def serve(
    read: Callable[[], GatewayConfig], config: GatewayConfig, gateway: Gateway, say: Say, warn: Say
) -> None:
    """Run until a signal says stop. `read`: the configuration as it is now, for SIGHUP."""
    stop = asyncio.Event()
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        if stop.is_set():
            # Whoever asks twice does not want to wait: what was acknowledged is on disk.
            os._exit(EXIT_FORCED)
        stop.set()
        reload.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    try:
        await gateway.start()
        for protocol in gateway.core.protocols.values():
            for line in protocol.warnings():
                warn(f"warning: {line}")
        for line in addresses(gateway):
            say(line)
        spare_what_is_loaded()
        tell_ready()
        await _enforce(gateway, say, warn)
        while not stop.is_set():
            await reload.wait()
            reload.clear()
            if not stop.is_set():
                config = reloaded(read, config, gateway, say, warn)
                await _enforce(gateway, say, warn)
        say("stopping")
    finally:
        with bounded(config.hub.stop_grace + STOP_MARGIN, warn):
            await gateway.stop()


def addresses(gateway: Gateway) -> Iterator[str]:
    """Where everything is; the last line says that all of it is up."""
    for protocol in gateway.core.protocols.values():
        for door in protocol.doors():
            yield f"{door.what} at {door.url}{_behind(door)}"
    if gateway.admin is not None:
        yield f"dashboard at {gateway.admin.url}"
    yield f"gateway {gateway.config.name} is up, its node at {gateway.socket}"


def _behind(door: OpenDoor) -> str:
    return "" if door.local_url in ("", door.url) else f", listening on {door.local_url}"


def reloaded(
    read: Callable[[], GatewayConfig], config: GatewayConfig, gateway: Gateway, say: Say, warn: Say
) -> GatewayConfig:
    """The configuration to compare the next one with."""
    try:
        fresh = read()
    except ConfigError as error:
        warn(f"not reloaded, everything stays as it is: {error}")
        return config
    plan = apply_reload(gateway, config, fresh)
    for line in plan.lines():
        say(line)
    # What waits for a restart is said again at the next reload, so it is not taken over here.
    return in_force(config, fresh)


async def _enforce(gateway: Gateway, say: Say, warn: Say) -> None:
    try:
        ended = sum([await protocol.keep_to_rules() for protocol in gateway.core.protocols.values()])
    except (OverloadedError, StorageError) as error:
        warn(f"subscriptions that the rules forbid were not all ended: {error}; reload to try again")
        return
    if ended:
        say(f"ended {ended} subscriptions that the rules forbid")


@contextlib.contextmanager
def bounded(seconds: float, warn: Say, leave: Callable[[int], object] = os._exit) -> Iterator[None]:
    """End the process if what is inside takes longer: also when the event loop itself is held up."""

    def too_long() -> None:
        warn(f"stopping took longer than {seconds:g} seconds: ended at once; what was acknowledged is on disk")
        sys.stderr.flush()
        leave(EXIT_FORCED)

    timer = threading.Timer(seconds, too_long)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
