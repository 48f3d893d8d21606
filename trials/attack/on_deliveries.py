"""Callbacks that are slow, broken, or not what they seem."""

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.on_intake import ATOM, feed, topic
from trials.attack.places import STRANGER, stranger_name
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


ATTACKS = (Attack("tar-pit", "200 callbacks of 40 names on one address that never answer", tar_pit),)
