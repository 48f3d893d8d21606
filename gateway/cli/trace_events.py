"""What a hub, a gateway and its node tell, as the traces' records: the only place that knows both.

Imported when something is traced: whoever starts without traces does not wait for it.
"""

from collections.abc import Callable

from exchange.model import EntryTaken, pack_origins
from gateway.events import (
    CrossingArrived,
    CrossingOffered,
    CrossingPublished,
    ItemAsked,
    PublishFailed,
)
from gateway.protocols.psirp.adapter import NETWORK
from gateway.protocols.websub.protocol import WEBSUB
from perf.traces.gateway_events import Arrived, GatewayTracer

PUSH = WEBSUB.label
"""The adapter whose publications the hub tells of itself."""


def observer_for(tracer: GatewayTracer) -> Callable[[object], None]:
    """Every event that a gateway, its hub and its node tell; most go to the hub's tracer as they are."""

    def observe(event: object) -> None:
        match event:
            case CrossingOffered():
                tracer.offered(event.item, event.name, event.body, starts_here=event.via != PUSH)
            case CrossingPublished():
                tracer.published(event.name)
            case PublishFailed():
                tracer.publish_failed(event.name, lasting=event.lasting)
            case ItemAsked():
                tracer.asked(event.item)
            case CrossingArrived():
                draft = event.crossing.draft
                origin = b"" if draft.origin is None else pack_origins((draft.origin,))
                tracer.arrived(
                    Arrived(event.item, draft.name, draft.body, origin, draft.published_ms, event.crossing.hops)
                )
            case EntryTaken():
                if event.key.reader not in (PUSH, NETWORK):
                    tracer.handed_over(pack_origins((event.entry.origin,)), event.key.reader)
            case _:
                tracer.observe_hub(event)

    return observe
