"""A chain with figures as a network to simulate: what formulas are compared with."""

from perf.models.chains import ChainSetting
from perf.models.connectivity import Connectivity
from perf.models.distributions import Exponential
from perf.models.patterns import Pattern
from perf.models.simulator import Alternating, SimulatedQueue, SimulatedSource, SimulatedWorld, poisson

LINK = "link"


def world_of(pattern: Pattern, setting: ChainSetting, *, expires_after_service: bool = False) -> SimulatedWorld:
    """Poisson arrivals, exponential services and periods, as the formulas assume."""
    queues = pattern.queues
    following: list[tuple[tuple[str, float], ...]] = [((queue.name, 1.0),) for queue in queues[1:]]
    link = setting.link is not None and setting.link.off > 0
    simulated = tuple(
        SimulatedQueue(
            queue.name,
            Exponential(setting.service_of(queue)),
            to,
            served_while=queue.party if setting.party_of(queue) is not None else None,
            loses_on=LINK if queue.lost_on_link and link else None,
            expires=queue.expires,
        )
        for queue, to in zip(queues, [*following, ()], strict=True)
    )
    parties = {queue.party: party for queue in queues if queue.party and (party := setting.party_of(queue))}
    connectivity = {name: _alternating(party) for name, party in parties.items()}
    if setting.link is not None and link:
        connectivity[LINK] = _alternating(setting.link)
    source = SimulatedSource("source", poisson(setting.rate), queues[0].name, setting.lifetime)
    return SimulatedWorld((source,), simulated, connectivity, expires_after_service)


def _alternating(party: Connectivity) -> Alternating:
    return Alternating(Exponential(party.on), Exponential(party.off))
