"""WebSub and PubSubHubbub as a protocol of the gateway."""

from collections.abc import Iterable, Sequence

from exchange.model import SessionKey
from gateway.access.enforce import end_forbidden
from gateway.access.rules import Act
from gateway.model import NotAllowedError, RefusedError
from gateway.protocols.descriptor import (
    ListeningDoor,
    LiveSetting,
    OpenDoor,
    ProtocolDescriptor,
    ProtocolHost,
    RunningProtocol,
)
from gateway.protocols.websub.adapter import WebsubAdapter
from gateway.protocols.websub.demand import MIGRATIONS, NetworkDemand
from gateway.protocols.websub.section import HubLimits, HubSection, hub_config
from identifiers import TopicError
from push_hub.health import Check, QueueLevel
from push_hub.hub import Hub, HubConfig
from push_hub.ports import Validator


class WebsubProtocol(RunningProtocol[HubConfig]):
    def __init__(self, config: HubConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.validators: list[Validator] = [host.access]
        """Asked for each new subscription, after the hub's own; others may be added before the start."""
        self.hub = Hub(
            config,
            validator=self,
            publishers=host.access,
            observer=host.observer,
            clock=host.clock,
            queues=host.queues,
        )
        self._adapter: WebsubAdapter | None = None
        self._demand: NetworkDemand | None = None

    async def refusal(self, topic: str, callback: str) -> str | None:
        """For the hub: the first refusal counts. Who wants the feed of a name is asked about that name."""
        name = self.host.control.converters.addresses.name_in(topic)
        if name is not None:
            return self._refusal_of_feed(name)
        for validator in self.validators:
            reason = await validator.refusal(topic, callback)
            if reason is not None:
                return reason
        return None

    def _refusal_of_feed(self, name: str) -> str | None:
        try:
            self.host.namespaces.read(name)
            self.host.control.check(Act.SUBSCRIBE, name)
        except (TopicError, NotAllowedError) as error:
            return str(error)
        return None

    async def prepare(self) -> None:
        host = self.host
        control = host.control
        adapter = self._adapter = WebsubAdapter(self.hub, host.naming, control, host.observer, host.namespaces)
        host.takes_feeds = lambda: self.hub.url
        self._demand = NetworkDemand(self.hub, host.naming, control, adapter, host.database, host.clock, host.observer)

    async def start(self) -> None:
        if self._adapter is not None and self._demand is not None:
            await self.hub.start()
            self.host.control.add(self._adapter, waited_for=True)
            await self._adapter.start()
            self._demand.start()

    async def stop(self) -> None:
        if self._demand is not None:
            await self._demand.stop()
        if self._adapter is not None:
            await self._adapter.stop()
        await self.hub.stop()

    def take_up(self, config: HubConfig) -> None:
        self.config = config
        self.hub.reconfigure(config.server, config.tls)

    async def keep_to_rules(self) -> int:
        return await end_forbidden(self.hub, self.host.access)

    async def end_session(self, key: SessionKey) -> bool:
        raise RefusedError("the hub stands for all its subscribers: end their subscriptions one by one, at its topics")

    def doors(self) -> Iterable[OpenDoor]:
        yield OpenDoor("hub", self.hub.url, self.hub.local_url)

    async def health(self) -> Sequence[Check]:
        return (await self.hub.health()).checks

    def queues(self) -> Sequence[QueueLevel]:
        return self.hub.queues


def _listening(config: HubConfig) -> Iterable[ListeningDoor]:
    proxies = bool(config.server.trusted_proxies)
    yield ListeningDoor(
        "the hub",
        config.host,
        config.port,
        section="hub",
        tls=config.tls,
        public_url=config.public_url,
        behind_proxy=proxies,
    )


WEBSUB = ProtocolDescriptor(
    label="websub",
    title="a WebSub hub that speaks the older PubSubHubbub, too",
    sections={"hub": HubSection, "limits": HubLimits},
    configured=hub_config,
    make=WebsubProtocol,
    tables=tuple(MIGRATIONS),
    listening=_listening,
    live=(
        LiveSetting("tls", may_begin=False, may_end=False),
        LiveSetting("server.per_client"),
        LiveSetting("server.per_topic"),
        LiveSetting("server.max_body"),
        LiveSetting("server.trusted_proxies"),
        LiveSetting("server.publisher_tokens"),
    ),
)
