"""REST as a protocol of the gateway."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from exchange.model import SessionKey
from gateway.protocols.descriptor import (
    Figure,
    LiveSetting,
    OpenDoor,
    ProtocolDescriptor,
    ProtocolHost,
    RunningProtocol,
)
from gateway.protocols.rest.adapter import FullError, RestAdapter, RestConfig
from gateway.protocols.rest.routes import RestRoutes
from gateway.sections import SectionError, Sections
from gateway.web.refusals import BUSY_RETRY_AFTER
from identifiers import Topic, TopicError
from serving.answers import HttpError

Count = Annotated[int, Meta(ge=1)]


class RestSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Its keys in the section of the port."""

    anyone_may_publish: bool = False
    publish_tokens_file: str | None = None
    publish_below: tuple[str, ...] = ()
    readers: Count = RestConfig().max_streams
    readers_per_client: Count = RestConfig().max_streams_per_client
    waiting_bytes: Count = RestConfig().max_waiting_bytes
    published_bytes: Count = RestConfig().max_body


def rest_config(sections: Sections) -> RestConfig | None:
    section = sections.read("web", RestSection)
    if not sections.has_web_port:
        return None
    for prefix in section.publish_below:
        try:
            Topic.parse(prefix)
        except TopicError as error:
            raise SectionError("web.publish_below", f"{prefix[:200]!r}: {error}") from None
    return RestConfig(
        max_streams=section.readers,
        max_streams_per_client=section.readers_per_client,
        max_waiting_bytes=section.waiting_bytes,
        max_body=section.published_bytes,
        tokens=sections.secrets("web.publish_tokens_file", section.publish_tokens_file),
        anyone_may_publish=section.anyone_may_publish,
        publish_below=section.publish_below,
    )


class RestProtocol(RunningProtocol[RestConfig]):
    def __init__(self, config: RestConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.adapter: RestAdapter | None = None

    async def prepare(self) -> None:
        host = self.host
        if host.web is not None:
            self.adapter = RestAdapter(self.config, host.naming, host.control, host.namespaces)
            host.web.translate(_translated)
            routes = RestRoutes(
                self.adapter,
                host.web.gate,
                host.web.answers,
                host.hub_url,
                host.control.converters.addresses.of,
            )
            routes.add_to(host.web.app)

    async def start(self) -> None:
        if self.adapter is not None:
            self.host.control.add(self.adapter)

    def close(self) -> None:
        if self.adapter is not None:
            self.adapter.close()

    def take_up(self, config: RestConfig) -> None:
        self.config = config
        if self.adapter is not None:
            self.adapter.take_up_tokens(config.tokens)

    async def keep_to_rules(self) -> int:
        return 0 if self.adapter is None else self.adapter.keep_to_rules()

    async def end_session(self, key: SessionKey) -> bool:
        return self.adapter is not None and self.adapter.end(key.who)

    def doors(self) -> Iterable[OpenDoor]:
        web = self.host.web
        if web is not None:
            yield OpenDoor("topics by GET and POST", f"{web.url}topics", f"{web.local_url}topics")

    def figures(self) -> Iterable[Figure]:
        if self.adapter is not None:
            yield Figure("streams", "Open streams.", self.adapter.open_streams)
            yield Figure("streams_cut", "Readers that were too slow.", self.adapter.cut, counts=True)
            yield Figure("streams_refused", "Streams there was no room for.", self.adapter.refused, counts=True)

    async def explain(self, name: str) -> Sequence[str]:
        item = self.host.namespaces.read(name).item(self.host.naming)
        followed = 0 if self.adapter is None else self.adapter.followers(item)
        return (f"{followed} open streams follow it",) if followed else ()

    def panel(self) -> Iterable[tuple[str, str | int]]:
        if self.adapter is not None:
            yield "open streams", self.adapter.open_streams


def _translated(error: Exception) -> HttpError | None:
    if isinstance(error, FullError):
        return HttpError(429 if error.yours else 503, str(error), BUSY_RETRY_AFTER)
    return None


REST = ProtocolDescriptor(
    label="rest",
    title="topics by GET and POST, for curl, scripts and browsers",
    sections={"web": RestSection},
    configured=rest_config,
    make=RestProtocol,
    live=(LiveSetting("tokens", may_end=False),),
)
