"""Ways to make the hub ask somebody whom only the hub can reach."""

import base64
from urllib.parse import parse_qs, urlsplit

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.on_intake import ATOM, feed, topic
from trials.attack.places import INSIDE, INSIDE_PORT, STRANGER, stranger_name, turning_name
from trials.attack.stranger import Attack, Stranger, confirms

SPELLINGS = (
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001",
    "127.0.0.1.", "0.0.0.0", "0", "127.0.0.2", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",  # noqa: S104
    "[::127.0.0.1]", "localhost", "LOCALHOST", "localhost.", "localhost.localdomain",
    "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "10.0.0.1", "10.1", "167772161",
    "0xa000001", "012.0.0.1", "[::ffff:10.0.0.1]", "[::ffff:a00:1]", "[64:ff9b::a00:1]", "[2002:a00:1::]",
    "169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]",
    "169.254.169.254.", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "①②⑦.⓪.⓪.①", "127。0。0。1", "[::1%25lo]",
    "[fe80::1%25eth0]", "user@127.0.0.1", "stranger.example@127.0.0.1", "127.0.0.1#@stranger.example",
    "127.0.0.1%00.stranger.example", "[::ffff:127.1]", "2130706433.", "0x7F.1", "127.0.0.1\\@stranger.example",
    "127.0.0.1\t", "9.66.0.1\\.127.0.0.1",
)  # fmt: skip
"""Of hosts that are, or that some library may take for, an address inside."""
OTHER_SCHEMES = ("file:///etc/passwd", "gopher://127.0.0.1:8000/_GET", "dict://127.0.0.1:8000/x", "ftp://127.0.0.1/")


def inner_urls(place: str) -> list[str]:
    by_name = [stranger_name(f"n{number}", address) for number, address in enumerate(INSIDE)]
    hosts = [*SPELLINGS, *by_name]
    return [f"http://{host}:{INSIDE_PORT}/{place}" for host in hosts] + list(OTHER_SCHEMES)


def wrapped(url: str) -> str:
    return base64.urlsafe_b64encode(url.encode()).decode()


async def spellings(stranger: Stranger) -> None:
    """As callbacks, as topics, and as what topics and callbacks redirect to; by names that turn."""

    def serve(request: LoopbackRequest, reply: Reply) -> None:
        query = parse_qs(urlsplit(request.target).query)
        if "to" in query and "hub.challenge" not in query:
            stranger.counts["redirected inwards"] += 1
            inner = base64.urlsafe_b64decode(query["to"][0]).decode()
            reply(answer(307, b"", {"Location": inner.encode("ascii", "ignore").decode().replace("\t", "")}))
            return
        checked = confirms(request)
        if "hard" in query and checked is not None:
            stranger.counts["checks redirected inwards"] += 1
            reply(
                answer(302, b"", {"Location": f"http://127.0.0.1:{INSIDE_PORT}/check?{urlsplit(request.target).query}"})
            )
        elif checked is not None:
            reply(checked)
        else:
            links = {"Link": f'<http://127.0.0.1:{INSIDE_PORT}/self>; rel="self", <http://10.0.0.1/>; rel="hub"'}
            reply(answer(200, feed(2), {"Content-Type": ATOM} | links))

    await stranger.listen(serve)
    await stranger.listen(serve, INSIDE_PORT)
    mine = f"http://{stranger_name('reader')}/callback"
    turning = [
        f"http://{turning_name(f't{number}', STRANGER, address)}:{INSIDE_PORT}/turned"
        for number, address in enumerate(INSIDE)
    ]
    topics = [
        *inner_urls("topic"),
        *(topic(f"r{number}") + f"?to={wrapped(url)}" for number, url in enumerate(inner_urls("redirected"))),
        *turning,
    ]
    callbacks = [
        *inner_urls("callback"),
        f"{mine}?hard=1",
        *(f"{mine}?to={wrapped(url)}" for url in inner_urls("posted")),
    ]
    callbacks += [url.replace("turned", "turned-callback").replace("//t", "//c") for url in turning]
    while stranger.goes_on:
        await stranger.together(stranger.subscribe(one, f"{mine}/{number}") for number, one in enumerate(topics))
        await stranger.together(stranger.subscribe(topic("plain"), one) for one in callbacks)
        await stranger.pause(0.5)
        await stranger.together(stranger.ping(one) for one in [*topics, topic("plain")])
        await stranger.pause(1.0)


ATTACKS = (
    Attack(
        "inward-spellings", f"{len(SPELLINGS)} spellings of inner addresses, redirects, and names that turn", spellings
    ),
)
