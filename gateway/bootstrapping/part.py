"""Bootstrapping as one part of a gateway: the manager of its own zones, and the requester of everybody else's."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from gateway.bootstrapping.config import BootstrappingConfig, zones_named
from gateway.bootstrapping.events import BootstrappingEvent
from gateway.bootstrapping.manager import Manager
from gateway.bootstrapping.requester import Requester
from gateway.bootstrapping.store import BootstrappingStore
from gateway.bootstrapping.upstream import Upstreams
from gateway.model import NetworkError
from gateway.protocols.psirp.adapter import PsirpAdapter
from gateway.protocols.psirp.exports import ExportStore
from identifiers import Naming, Topic, TopicError
from psirp_stack.node.api import Client
from push_hub.hub import Hub
from push_hub.model import HubPublication
from storage import StorageError

STATUS_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class BootstrappingStatus:
    """Zones managed here, topics followed for others and why, (zone, topic, answer) that were asked for, counters."""

    zones: tuple[str, ...] = ()
    requesters: int = 0
    topics: tuple[tuple[str, str], ...] = ()
    asked: tuple[tuple[str, str, str], ...] = ()
    counters: tuple[tuple[str, int], ...] = ()


class Bootstrapping:
    """Made before the hub, whose policy and listener it is; `prepare` it before the hub starts and `start` it after."""

    def __init__(
        self,
        config: BootstrappingConfig,
        naming: Naming,
        clock: Callable[[], float],
        observer: Callable[[BootstrappingEvent], None] | None = None,
    ) -> None:
        self.zones = zones_named(config.zones)
        self._config = config
        self._naming = naming
        self._clock = clock
        self._observer = observer
        self._ready = asyncio.Event()
        self._hub: Hub | None = None
        self._client: Client | None = None
        self._control: ExportStore | None = None
        self._function: PsirpAdapter | None = None
        self._upstreams: Upstreams | None = None
        self.manager: Manager | None = None
        self.requester: Requester | None = None

    def prepare(self, hub: Hub, client: Client, control: ExportStore, function: PsirpAdapter) -> None:
        """The tables must be in the control function's database: see `gateway.bootstrapping.MIGRATIONS`."""
        self._hub, self._client, self._control, self._function = hub, client, control, function
        store = BootstrappingStore(control.database)
        self._upstreams = Upstreams(
            hub,
            store,
            self._config,
            self._clock,
            wanted=lambda topic: self.manager is not None and self.manager.request_table.wanted(topic),
            decided=lambda topic, verdict: self.manager.decided(topic, verdict) if self.manager is not None else None,
            withdraw=self._withdraw,
            observer=self._observer,
        )

    async def start(self) -> None:
        if self._hub is None or self._client is None or self._control is None or self._upstreams is None:
            raise RuntimeError("not prepared")
        store = BootstrappingStore(self._control.database)
        self.manager = Manager(
            self._config.manager or self._hub.url,
            self.zones,
            self._naming,
            self._client,
            store,
            self._upstreams,
            self._config,
            self._clock,
            self._observer,
        )
        self.requester = Requester(
            self.zones,
            self._naming,
            self._hub,
            self._client,
            self._control,
            store,
            self._upstreams.is_ours,
            self._config,
            self._clock,
            self._observer,
        )
        await self._upstreams.start()
        await self.manager.start()
        await self.requester.start()
        self._ready.set()

    async def stop(self) -> None:
        self._ready.clear()
        if self.requester is not None:
            await self.requester.stop()
        if self.manager is not None:
            await self.manager.stop()
        if self._upstreams is not None:
            await self._upstreams.stop()

    async def _withdraw(self, topic: str) -> None:
        if self._function is not None:
            with contextlib.suppress(NetworkError, StorageError, TopicError):
                await self._function.withdraw(self._naming.of_topic(Topic.parse(topic)))

    def status(self) -> BootstrappingStatus:
        """What this part does at the moment, for people and dashboards."""
        manager, requester, upstreams = self.manager, self.requester, self._upstreams
        if manager is None or requester is None or upstreams is None:
            return BootstrappingStatus()
        request_table, counters = manager.request_table, manager.request_table.counters
        return BootstrappingStatus(
            zones=tuple(self.zones),
            requesters=request_table.known,
            topics=tuple(
                (topic, "not decided yet" if (verdict := request_table.verdict(topic)) is None else verdict.reason)
                for topic in request_table.topics[:STATUS_ROWS]
            ),
            asked=tuple(
                (
                    zone,
                    topic,
                    "not answered yet"
                    if (answer := requester.request_table.answer(zone, topic)) is None
                    else answer.reason,
                )
                for zone in requester.request_table.zones[:STATUS_ROWS]
                for topic in list(requester.request_table.wanted(zone))[:STATUS_ROWS]
            )[:STATUS_ROWS],
            counters=(
                ("subscriptions_refused", requester.refused),
                ("managers_disbelieved", requester.disbelieved),
                ("lists_replayed", counters.replayed),
                ("lists_forged", counters.forged),
                ("lists_turned_away", counters.turned_away),
                ("refusals_unexplained", counters.unexplained),
                ("deliveries_badly_signed", upstreams.badly_signed),
                ("deliveries_refused", upstreams.refused),
            ),
        )

    # For the hub.

    async def refusal(self, topic: str, callback: str) -> str | None:
        try:
            async with asyncio.timeout(self._config.answer_timeout):
                await self._ready.wait()
        except TimeoutError:
            return "this gateway is not ready yet: try again"
        return None if self.requester is None else await self.requester.refusal(topic, callback)

    def publication_accepted(self, publication: HubPublication) -> None:
        pass

    def subscription_changed(self, topic: str, live: int) -> None:
        if self._ready.is_set() and self.requester is not None:
            self.requester.subscription_changed(topic, live)
