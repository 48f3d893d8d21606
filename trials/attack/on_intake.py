"""Pings, and what feeds can do to the hub that fetches them."""

from collections.abc import Callable

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.places import STRANGER, silent_name, stranger_address, stranger_name
from trials.attack.stranger import MEBIBYTE, Attack, Stranger, confirms, host_of

ATOM = "application/atom+xml"


def entry(number: int, attributes: int, size: int) -> str:
    many = " ".join(f'a{n}="{number}"' for n in range(attributes))
    title = "t" * size
    updated = "2026-01-01T00:00:00Z"
    return f"<entry><id>urn:{number}</id><title>{title}</title><link {many}/><updated>{updated}</updated></entry>"


def feed(entries: int, attributes: int = 1, size: int = 10, turn: int = 0) -> bytes:
    inside = "".join(entry(turn * entries + number, attributes, size) for number in range(entries))
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id><title>{turn}</title>{inside}</feed>'.encode()


def topic(label: str, address: str = STRANGER) -> str:
    return f"http://{stranger_name(label, address)}/feed"


class Feeds:
    """Serves a document, always as a new one, confirms whatever is asked, and takes deliveries."""

    def __init__(self, stranger: Stranger, make: Callable[[int], bytes]) -> None:
        self._stranger = stranger
        self._make = make
        self.fetched = 0

    def __call__(self, request: LoopbackRequest, reply: Reply) -> None:
        checked = confirms(request)
        if checked is not None:
            self._stranger.counts["checks confirmed"] += 1
            reply(checked)
        elif request.method == "POST":
            self._stranger.counts["deliveries taken"] += 1
            reply(answer(204))
        else:
            self.fetched += 1
            self._stranger.counts["fetches"] += 1
            reply(answer(200, self._make(self.fetched), {"Content-Type": ATOM}))


async def unwanted(stranger: Stranger) -> None:
    """Big feeds, pinged from many networks, that nobody subscribed to."""
    document = feed(5000, size=150)
    served = Feeds(stranger, lambda turn: document)
    await stranger.listen(served)
    number = 0
    while stranger.goes_on:
        sources = [stranger_address(number + n) for n in range(100)]
        await stranger.together(
            stranger.ping(topic(f"unwanted-{number + n}", source), source=source) for n, source in enumerate(sources)
        )
        number += len(sources)
    if served.fetched:
        stranger.breach("a topic that nobody wants was fetched")


async def many_attributes(stranger: Stranger) -> None:
    """Ten feeds that are slow to take apart, subscribed to, and pinged in one request again and again."""
    documents = [feed(600, attributes=250, turn=turn) for turn in range(4)]
    await stranger.listen(Feeds(stranger, lambda turn: documents[turn % len(documents)]))
    topics = [topic(f"slow-{number}") for number in range(10)]
    for one in topics:
        await stranger.subscribe(one, f"http://{stranger_name('reader')}/callback")
    while stranger.goes_on:
        await stranger.ping(*topics)
        await stranger.pause(0.5)


async def hundred_names(stranger: Stranger) -> None:
    """Names that all lead to one server that does not answer, pinged a hundred in a request; all are subscribed to."""
    held = 0
    most = 0
    names = {f"n{number}" for number in range(100)}

    def serve(request: LoopbackRequest, reply: Reply) -> None:
        nonlocal held, most
        checked = confirms(request)
        if checked is not None:
            reply(checked)
        elif host_of(request).partition(".")[0] in names:
            held += 1
            most = max(most, held)
            stranger.counts["fetches held"] += 1

    await stranger.listen(serve)
    topics = [topic(name) for name in sorted(names)]
    await stranger.together(
        stranger.subscribe(one, f"http://{stranger_name('reader')}/c{n}") for n, one in enumerate(topics)
    )
    while stranger.goes_on:
        await stranger.ping(*topics)
        await stranger.pause(1.0)


async def silent_names(stranger: Stranger) -> None:
    """Topics and callbacks in two hundred domains whose name servers never answer, pinged and subscribed to."""
    served = Feeds(stranger, lambda turn: feed(2, turn=turn))
    await stranger.listen(served)
    topics = [f"http://{silent_name(str(number))}/feed" for number in range(200)]
    reader = f"http://{stranger_name('reader')}/callback"
    await stranger.together(stranger.subscribe(one, f"{reader}/{number}") for number, one in enumerate(topics))
    number = 0
    while stranger.goes_on:
        for at in range(0, len(topics), 50):
            await stranger.ping(*topics[at : at + 50])
        await stranger.together(
            stranger.subscribe(topic("plain"), f"http://{silent_name(f'c{number + n}')}/callback") for n in range(100)
        )
        number += 100
        await stranger.pause(1.0)


ATTACKS = (
    Attack("unwanted-pings", "pings of big feeds that nobody wants, from 256 networks", unwanted),
    Attack(
        "many-attributes",
        "ten feeds that are slow to parse, pinged together",
        many_attributes,
        # Parsers; and what is wanted is kept, up to `kept_bytes`, in the log and for a while in its WAL.
        memory=192 * MEBIBYTE,
        disk=200 * MEBIBYTE,
    ),
    Attack("silent-names", "200 domains whose name servers never answer, as topics and callbacks", silent_names),
    Attack("hundred-names", "pings of 100 names on one server that does not answer", hundred_names),
)
