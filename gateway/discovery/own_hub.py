"""The hub of a domain, for its readers: where its service record leads, asked there for its own name (RFC 6415)."""

import json
import random

from gateway.discovery.failover import Failover, FailoverConfig
from gateway.discovery.model import Found, GatewayRecord, LookupFailedError
from gateway.discovery.resolver import Resolver
from push_hub.protocol.urls import UrlError, normalised
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from serving.outbound.errors import OutboundError

HOST_META = "/.well-known/host-meta.json"
MAX_DOCUMENT = 64 * 1024
PATIENCE = 5.0


async def hub_of(domain: str, resolver: Resolver, policy: AddressPolicy) -> str:
    """Tries the domain's gateways in the order that its record says. Raises `DiscoveryError`."""
    found: Found = await resolver.lookup(domain)
    if not found.gateways:
        raise LookupFailedError(f"{domain}: {found.explanation}")
    troubles = []
    for gateway in Failover(FailoverConfig(), random.Random()).order(found.gateways, now=0.0):  # noqa: S311
        for scheme in ("https", "http"):
            try:
                return await _asked(gateway, scheme, policy)
            except (OutboundError, LookupFailedError) as error:
                troubles.append(f"{scheme}://{gateway.target}:{gateway.port}: {error}")
    raise LookupFailedError(f"no gateway of {domain} says where its hub is: {'; '.join(troubles)}")


async def _asked(gateway: GatewayRecord, scheme: str, policy: AddressPolicy) -> str:
    # The addresses that were looked up, and not those of another name service.
    hosts = tuple((gateway.target, address) for address in gateway.addresses if ":" not in address)[:1]
    client = OutboundClient(ClientConfig(policy, hosts=hosts))
    try:
        answer = await client.request(
            "GET",
            f"{scheme}://{gateway.target}:{gateway.port}{HOST_META}",
            headers={"Accept": "application/jrd+json, application/json"},
            body=None,
            timeout=PATIENCE,
            max_bytes=MAX_DOCUMENT,
        )
    finally:
        await client.close()
    try:
        links = json.loads(answer.body)["links"]
        return normalised(next(str(link["href"]) for link in links if link.get("rel") == "hub"))
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError, UrlError):
        raise LookupFailedError(f"{HOST_META} names no hub (status {answer.status})") from None
