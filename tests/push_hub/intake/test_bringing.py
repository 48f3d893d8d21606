"""What a gateway brings from another network: delivered like everything else, and never told to listeners."""

from pathlib import Path

from push_hub.canary import CanaryConfig
from push_hub.hub import Hub, HubConfig
from push_hub.model import Content, HubPublication

TOPIC = "http://news.example/feed"
ATOM = "application/atom+xml"


def feed(*titles: str) -> bytes:
    entries = "".join(f"<entry><id>urn:{title}</id><title>{title}</title></entry>" for title in titles)
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entries}</feed>'.encode()


class Listener:
    def __init__(self) -> None:
        self.heard: list[HubPublication] = []

    def publication_accepted(self, publication: HubPublication) -> None:
        self.heard.append(publication)

    def subscription_changed(self, topic: str, live: int) -> None: ...


async def test_what_is_brought_is_kept_apart_compared_and_not_echoed(tmp_path: Path) -> None:
    hub = Hub(HubConfig(tmp_path, canary=CanaryConfig(enabled=False)))
    listener = Listener()
    hub.add_listener(listener)
    await hub.start()
    try:
        await hub.bring(TOPIC, "http://news.example/self", Content(ATOM, feed("one")))
        await hub.bring(TOPIC, "http://news.example/self", Content(ATOM, feed("one")))
        await hub.bring(TOPIC, "http://news.example/self", Content(ATOM, feed("two", "one")))
        newest, oldest = hub.delivery.latest(TOPIC, 9)
        assert (oldest.content.body, newest.content.body) == (feed("one"), feed("two", "one"))
        assert newest.self_url == "http://news.example/self"
        assert listener.heard == []
        assert hub.delivery.own_after(0) == []
        own = await hub.deliver("http://other.example/", "http://other.example/", Content("text/plain", b"own"))
        assert [publication.id for publication in hub.delivery.own_after(0)] == [own.id]
    finally:
        await hub.stop()
