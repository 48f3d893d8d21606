"""What an operator can do to one subscription: try now, leave alone, ask again."""

from aiohttp import web

from push_hub.delivery.pausing import PAUSED
from tests.push_hub.harness import atom, until
from tests.push_hub.world import World


async def test_a_paused_callback_is_left_alone_and_gets_everything_in_order_afterwards(world: World) -> None:
    await world.ask("subscribe")
    callback, number = world.subscriber.url(), world.found().id
    assert await world.hub.pause(world.topic, callback)
    assert not await world.hub.pause(world.topic, callback)
    for count in (1, 2, 3):
        world.publisher.body = atom(*range(1, count + 1))
        await world.ping()
        await until(lambda count=count: len(world.hub.delivery.owed(number)) == count)
    assert world.hub.delivery.owed(number)[0].reason == PAUSED
    assert not await world.hub.retry_now(world.topic, callback)
    assert world.subscriber.received.empty()
    assert await world.hub.resume(world.topic, callback)
    bodies = [(await world.subscriber.next_received()).body for _ in range(3)]
    assert [b"Entry 2" in body for body in bodies] == [False, True, True]
    assert [b"Entry 3" in body for body in bodies] == [False, False, True]
    await until(lambda: not world.hub.delivery.owed(number))
    assert not await world.hub.resume(world.topic, callback)


async def test_a_pause_outlives_a_restart(world: World) -> None:
    await world.ask("subscribe")
    callback, number = world.subscriber.url(), world.found().id
    await world.hub.pause(world.topic, callback)
    await world.hub.stop()
    await world.hub.start()
    assert world.hub.delivery.is_paused(number)
    world.publisher.body = atom(1)
    await world.ping()
    await until(lambda: world.hub.delivery.owed(number))
    assert await world.hub.resume(world.topic, callback)
    await world.subscriber.next_received()


async def test_what_failed_is_tried_at_once_when_the_operator_says_so(world: World) -> None:
    await world.ask("subscribe")
    number = world.found().id
    world.subscriber.status = 500
    await world.publish(atom(1))
    await until(lambda: world.hub.delivery.owed(number))
    world.subscriber.status = 200
    assert await world.hub.retry_now(world.topic, world.subscriber.url())
    await world.subscriber.next_received()
    await until(lambda: not world.hub.delivery.owed(number))
    assert not await world.hub.retry_now(world.topic, world.subscriber.url())


async def test_a_callback_that_does_not_agree_again_loses_its_subscription(world: World) -> None:
    await world.ask("subscribe")
    callback = world.subscriber.url()
    before = world.found().lease_until
    assert await world.hub.reverify(world.topic, callback)
    await until(lambda: world.found().lease_until > before)
    world.subscriber.reply = lambda _check: web.Response(status=404)
    assert await world.hub.reverify(world.topic, callback)
    await until(lambda: not world.hub.subscriptions.count(world.topic))
    assert not await world.hub.reverify(world.topic, callback)
