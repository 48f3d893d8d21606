"""Everything that keeps a gateway from working and can be seen from its own machine, one finding for each thing."""

import fcntl
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.config import ConfigError, load
from gateway.gateway import DATABASE_NAME, GatewayConfig
from gateway.operations.checks_machine import (
    check_admin,
    check_clock,
    check_names,
    check_permissions,
    check_ports,
    check_space,
    ports_of,
)
from gateway.operations.checks_network import PATIENCE, check_buffers, check_links, check_rendezvous
from gateway.operations.checks_tls import check_certificates, check_keys, named_in, secured_ports
from gateway.operations.findings import Finding, FindingLevel, bad, good
from gateway.operations.stores import StoreProblemError, problems, stores_below, too_new, versions

CONFIGURATION = "configuration"
STORE = "store"
_PROPOSED = re.compile(r"\((chmod 600 [^)]+)\)")


async def examine(
    path: Path,
    environment: Mapping[str, str] | None = None,
    *,
    thorough: bool = False,
    names: bool = True,
    patience: float = PATIENCE,
) -> list[Finding]:
    """Look at a gateway whose configuration is at `path`, running or not. Changes nothing."""
    try:
        config = load(path, environment)
    except ConfigError as error:
        # What the text proposes itself is the better advice; a certificate may have more than one thing wrong.
        proposed = _PROPOSED.search(str(error))
        fix = (
            proposed[1] if proposed else "correct that setting; `psph config example` shows every key with its meaning"
        )
        certificates = check_certificates(named_in(path), time.time())
        return [
            bad(CONFIGURATION, str(error), fix),
            *(one for one in certificates if one.verdict is not FindingLevel.GOOD),
        ]
    running = is_running(config)
    node = config.network.node
    links = node.links if node is not None else ()
    return [
        good(CONFIGURATION, f"{path} can be used; the gateway {'runs' if running else 'does not run'} now"),
        *check_ports(ports_of(config), running=running),
        *check_admin(config.admin),
        *check_certificates(secured_ports(config), time.time()),
        *check_keys(config),
        *check_permissions(config.data, links),
        *check_space(config.data),
        *(check_names(config) if names else ()),
        *check_clock(config.data, time.time()),
        *check_stores(config.data, thorough=thorough),
        *check_links(node),
        *check_buffers(node),
        await check_rendezvous(config, running=running, patience=patience),
    ]


def is_running(config: GatewayConfig) -> bool:
    """Whether somebody holds the lock of the store."""
    lock = config.data / f"{DATABASE_NAME}.lock"
    try:
        with lock.open("r", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_stores(data: Path, *, thorough: bool) -> Iterator[Finding]:
    try:
        stores = stores_below(data) if data.exists() else []
    except (StoreProblemError, OSError) as error:
        yield bad(STORE, str(error), "name the directory of one gateway as store.path")
        return
    if not stores:
        yield good(STORE, f"{data}: no store yet; it is made at the first start")
    for store in stores:
        wrong = problems(store.path, thorough=thorough)
        if wrong:
            fix = f"stop the gateway, move {data} away, and `psph restore` the last backup"
            yield bad(STORE, f"{store.path}: {'; '.join(wrong)}", fix)
            continue
        try:
            newer = too_new(versions(store.path))
        except StoreProblemError as error:
            yield bad(STORE, str(error), f"move {store.path} away: no gateway made it")
            continue
        if newer:
            yield bad(STORE, f"{store.path}: {newer[0]}", "start the newer version, or restore a backup of before")
        else:
            yield good(STORE, f"{store.path}: whole")
