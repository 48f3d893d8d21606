"""Callbacks that are slow, broken, or not what they seem."""

from urllib.parse import urlsplit

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.on_intake import ATOM, feed, topic
from trials.attack.places import CALLBACK, STRANGER, TENANTS, stranger_name
from trials.attack.stranger import Attack, Stranger, confirms


def callback(label: str, address: str = STRANGER) -> str:
    return f"http://{stranger_name(label, address)}/callback"


async def tar_pit(stranger: Stranger) -> None:
    """Two hundred callbacks of forty names on one address that take a delivery and never answer."""
    turn = 0

    def serve(request: LoopbackRequest, reply: Reply) -> None:
        nonlocal turn
        checked = confirms(request)
        if checked is not None:
            reply(checked)
        elif request.method == "GET":
            turn += 1
            reply(answer(200, feed(3, turn=turn), {"Content-Type": ATOM}))
        else:
            stranger.counts["deliveries held"] += 1

    await stranger.listen(serve)
    pit = topic("pit")
    await stranger.together(stranger.subscribe(pit, f"{callback(f'n{n % 40}')}/{n}") for n in range(200))
    while stranger.goes_on:
        await stranger.ping(pit)
        await stranger.pause(0.5)


async def bad_tenants(stranger: Stranger) -> None:
    """Callbacks on the host of the innocent reader: twenty that answer with errors, and twenty that never answer."""
    turn = 0

    def serve(_: LoopbackRequest, reply: Reply) -> None:
        nonlocal turn
        turn += 1
        reply(answer(200, feed(3, turn=turn), {"Content-Type": ATOM}))

    await stranger.listen(serve)
    host = urlsplit(CALLBACK).netloc
    tenants = [f"http://{host}{TENANTS}{kind}/{n}" for kind in ("broken", "silent") for n in range(20)]
    one = topic("tenants")
    await stranger.together(stranger.subscribe(one, tenant) for tenant in tenants)
    while stranger.goes_on:
        await stranger.ping(one)
        stranger.counts["publications"] = turn
        await stranger.pause(0.2)


ATTACKS = (
    Attack("tar-pit", "200 callbacks of 40 names on one address that never answer", tar_pit),
    Attack("bad-tenants", "40 callbacks on the reader's own host that fail or never answer", bad_tenants),
)
