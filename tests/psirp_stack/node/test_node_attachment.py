"""Applications on a real Unix socket: sharing a node, dying, nodes that restart, and hostile bytes."""

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers import Identifier
from psirp_stack.control.codes import Code
from psirp_stack.node import attachment
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.attachment import AttachmentError, Done, ReceivedVersion, Skipped, Unframer, framed, read_told
from psirp_stack.node.config import NodeFile, NodeRole, TimesFile
from psirp_stack.node.server import SocketInUseError
from psirp_stack.node.shell import RunningNode
from tests.psirp_stack.simulated import scope

SID, RID = Identifier(scope(3)), Identifier(scope(4))
FILE = NodeFile(
    name="alone",
    roles=(NodeRole.RENDEZVOUS, NodeRole.TOPOLOGY),
    data="data",
    socket="node.sock",
    times=TimesFile(hello=0.1, lease=5.0),
)


async def until(true: object, seconds: float = 10.0) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(seconds):
        while not true():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0)


async def until_subscribers(client: Client, count: int) -> None:
    """Until the rendezvous knows so many."""
    async with asyncio.timeout(10):
        while len((await client.explain(SID, RID)).subscribers) != count:
            pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RunningNode]:
    running = await RunningNode.start(FILE, tmp_path)
    yield running
    await running.close()


async def test_several_applications_share_one_node(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as one, await Client.attach(path) as two, await Client.attach(path) as three:
        got: dict[str, list[bytes]] = {"one": [], "two": []}
        await one.subscribe(SID, RID, lambda publication: got["one"].append(publication.content))
        await two.subscribe(SID, RID, lambda publication: got["two"].append(publication.content))
        for content in (b"a", b"b", b"c"):
            await three.publish(SID, RID, content)
        await until(lambda: all(len(contents) == 3 for contents in got.values()))
        assert got["one"] == got["two"] == [b"a", b"b", b"c"]
        assert len(node.node.request_table.applications) == 3
        assert node.node.request_table.subscribed_items == 1


async def test_only_its_owner_may_attach(node: RunningNode, path: Path) -> None:
    mode = path.stat().st_mode  # noqa: ASYNC240
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_the_socket_goes_with_the_node(tmp_path: Path, path: Path) -> None:
    running = await RunningNode.start(FILE, tmp_path)
    await running.close()
    assert not path.exists()  # noqa: ASYNC240
    with pytest.raises(NotAttachedError, match="no node at"):
        await Client.attach(path)


async def test_a_socket_that_is_in_use_is_not_taken(node: RunningNode, tmp_path: Path) -> None:
    other = NodeFile(name="other", socket="node.sock")
    with pytest.raises(SocketInUseError, match="another node listens"):
        await RunningNode.start(other, tmp_path)


async def test_the_socket_of_a_killed_node_is_taken_over(tmp_path: Path, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    running = await RunningNode.start(FILE, tmp_path)
    async with await Client.attach(path) as client:
        await client.publish(SID, RID, b"works")
    await running.close()


async def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path, path: Path) -> None:
    path.write_text("precious")  # noqa: ASYNC240
    with pytest.raises(SocketInUseError, match="not a socket"):
        await RunningNode.start(FILE, tmp_path)
    assert path.read_text() == "precious"  # noqa: ASYNC240


async def test_an_application_that_dies_is_cleaned_up(node: RunningNode, path: Path) -> None:
    _, writer = await asyncio.open_unix_connection(str(path))
    writer.write(framed(attachment.Attach(1, "mortal")))
    writer.write(framed(attachment.Subscribe(1, bytes(SID), bytes(RID))))
    writer.write(framed(attachment.Publish(2, bytes(SID), scope(9), b"content", b"")))
    writer.write(framed(attachment.LocalSubscribeScope(3, bytes(SID))))
    await until(lambda: node.node.request_table.subscribed_items == 1 and node.node.request_table.published_items == 1)
    async with await Client.attach(path) as other:
        await until_subscribers(other, 1)
        writer.transport.abort()
        await until(lambda: len(node.node.request_table.applications) == 1)
        await until_subscribers(other, 0)
    assert node.node.request_table.subscribed_items == node.node.request_table.published_items == 0


async def test_read_current_does_not_wait_for_what_nobody_publishes(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client:
        assert await client.read_current(SID, RID) is None
        await client.publish(SID, RID, b"current")
        async with await Client.attach(path) as reader:
            current = await reader.read_current(SID, RID)
            assert current is not None
            assert current.content == b"current"


async def test_subscribe_sync_waits_for_one_publication(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client, await Client.attach(path) as other:
        waiting = asyncio.ensure_future(client.subscribe_sync(SID, RID, 10.0))
        await until(lambda: node.node.request_table.subscribed_items == 1)
        await other.publish(SID, RID, b"there it is", b"attributes")
        publication = await waiting
        assert (publication.content, publication.attributes) == (b"there it is", b"attributes")
        with pytest.raises(TimeoutError):
            await client.subscribe_sync(SID, Identifier(scope(77)), 0.01)
        await until(lambda: node.node.request_table.subscribed_items == 0)


async def test_listeners_of_one_application_share_a_subscription(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client, await Client.attach(path) as publisher:
        got: list[list[bytes]] = [[], [], []]
        first = asyncio.ensure_future(client.subscribe(SID, RID, lambda p: got[0].append(p.content)))
        second = asyncio.ensure_future(client.subscribe(SID, RID, lambda p: got[1].append(p.content)))
        await asyncio.sleep(0)
        first.cancel()  # before the node has answered: the other one goes on
        with pytest.raises(asyncio.CancelledError):
            await first
        subscription = await second
        await publisher.publish(SID, RID, b"one")
        await until(lambda: got[1] == [b"one"])
        late = await client.subscribe(SID, RID, lambda p: got[2].append(p.content))
        await until(lambda: got[2] == [b"one"])
        await publisher.publish(SID, RID, b"two")
        await until(lambda: got[1] == got[2] == [b"one", b"two"])
        await client.unsubscribe(subscription)
        assert node.node.request_table.subscribed_items == 1
        await client.unsubscribe(late)
        assert node.node.request_table.subscribed_items == 0
        assert got[0] == []


async def test_all_listeners_hear_that_a_subscription_is_refused(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client:
        asked = [client.subscribe(Identifier(scope(0)), Identifier(scope(0)), print) for _ in range(3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [PsirpError] * 3


async def test_publications_come_one_by_one_as_they_are_handled(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as publisher, await Client.attach(path) as reader:
        await publisher.publish(SID, RID, b"0")
        seen = []
        async for publication in reader.publications(SID, RID):
            seen.append(publication.content)
            if len(seen) == 5:
                break
            await publisher.publish(SID, RID, b"%d" % len(seen))
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_refusals_reach_the_caller_by_name(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client:
        with pytest.raises(PsirpError, match="father does not exist") as refused:
            await client.publish_scope(SID, Identifier(scope(99)))
        assert refused.value.code is Code.FATHER_DOES_NOT_EXIST
        with pytest.raises(PsirpError) as refused:
            await client.publish(SID, RID, b"", b"x" * 5000)
        assert refused.value.code is Code.TOO_LARGE
        with pytest.raises(PsirpError) as refused:
            await client.subscribe(Identifier(scope(0)), Identifier(scope(0)), print)
        assert refused.value.code is Code.WRONG_IDS


async def test_scopes_tell_what_comes_and_goes(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client, await Client.attach(path) as owner:
        seen: list[tuple[bytes, bool, bool]] = []
        await client.subscribe_scope(SID, lambda change: seen.append((change.child, change.is_scope, change.published)))
        child = Identifier(scope(8))
        await owner.publish_scope(child, SID)
        await owner.publish(SID, RID, b"content")
        await until(lambda: len(seen) == 2)
        await owner.unpublish_scope(child, SID)
        await owner.unpublish(SID, RID)
        await until(lambda: len(seen) == 4)
        assert seen[:2] == [(bytes(child), True, True), (bytes(RID), False, True)]
        assert sorted(seen[2:]) == sorted([(bytes(child), True, False), (bytes(RID), False, False)])


async def test_a_listener_that_fails_does_not_end_its_subscription(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path) as client, await Client.attach(path) as publisher:
        seen: list[bytes] = []
        errors: list[Exception] = []
        client.on_listener_error = lambda _, error: errors.append(error)

        def listener(publication: ReceivedVersion) -> None:
            seen.append(publication.content)
            if len(seen) == 1:
                raise RuntimeError("a mistake")

        await client.subscribe(SID, RID, listener)
        await publisher.publish(SID, RID, b"one")
        await publisher.publish(SID, RID, b"two")
        await until(lambda: len(seen) == 2)
        assert [str(error) for error in errors] == ["a mistake"]


async def test_a_node_that_restarts_is_attached_to_again_and_the_application_notices_nothing(
    tmp_path: Path, path: Path
) -> None:
    first = await RunningNode.start(FILE, tmp_path)
    publisher, subscriber = await Client.attach(path), await Client.attach(path)
    got: list[bytes] = []
    scopes: list[bytes] = []
    await subscriber.subscribe(SID, RID, lambda publication: got.append(publication.content))
    await subscriber.subscribe_scope(SID, lambda change: scopes.append(change.child))
    await publisher.publish(SID, RID, b"one")
    await until(lambda: got == [b"one"])
    await first.close()
    answer = asyncio.ensure_future(publisher.publish(SID, RID, b"two"))  # asked while there is no node
    await asyncio.sleep(0)
    second = await RunningNode.start(FILE, tmp_path)
    async with asyncio.timeout(20):
        await answer
        await until(lambda: got[-1] == b"two")
        await publisher.publish(SID, RID, b"three")
        await until(lambda: len(got) == 3)
    assert got == [b"one", b"two", b"three"]
    assert subscriber.reattachments == publisher.reattachments == 1
    await publisher.close()
    await subscriber.close()
    await second.close()


async def test_closing_ends_what_waits(node: RunningNode, path: Path) -> None:
    client = await Client.attach(path)
    waiting = asyncio.ensure_future(client.subscribe_sync(SID, RID, 60.0))
    await until(lambda: node.node.request_table.subscribed_items == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.close()
    with pytest.raises(NotAttachedError):
        await client.publish(SID, RID, b"too late")
    await until(lambda: node.node.request_table.applications == [])


async def test_a_subscription_may_end_while_the_client_closes(node: RunningNode, path: Path) -> None:
    client = await Client.attach(path)
    busy = asyncio.Event()

    async def ends_the_other(publication: ReceivedVersion) -> None:
        busy.set()
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(NotAttachedError):
                await client.unsubscribe(other)

    await client.subscribe(SID, RID, ends_the_other)
    other = await client.subscribe(SID, Identifier(scope(5)), lambda _: None)
    await client.publish(SID, RID, b"something")
    await busy.wait()
    await client.close()


async def test_status_is_json_that_names_the_node(node: RunningNode, path: Path) -> None:
    async with await Client.attach(path, application="asker") as client:
        account = json.loads(await client.status())
    assert account["name"] == "alone"
    assert account["applications"] == ["asker"]
    assert account["roles"] == ["rendezvous", "topology"]


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        framed(attachment.Subscribe(1, bytes(32), bytes(32))),  # before saying who it is
        framed(attachment.Attach(99, "from the future")),
        framed(attachment.Attach(1, "twice")) * 2,
        framed(Done(1, 0)),
        b"\x00\x00\x00\x00",
        bytes(range(256)) * 400,
    ],
)
async def test_hostile_bytes_are_cut_off_and_disturb_nobody(node: RunningNode, path: Path, hostile: bytes) -> None:
    async with await Client.attach(path) as honest:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(hostile)
        async with asyncio.timeout(10):
            try:
                while await reader.read(1000):
                    pass
            except ConnectionError:
                pass
        writer.close()
        await until(lambda: len(node.node.request_table.applications) == 1)
        await honest.publish(SID, RID, b"undisturbed")


async def test_an_application_that_does_not_read_is_cut_off(
    node: RunningNode, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psirp_stack.node.server.MAX_UNSENT_BYTES", 100_000)
    _, writer = await asyncio.open_unix_connection(str(path), limit=1)
    writer.write(framed(attachment.Attach(1, "deaf")))
    for number in range(5000):
        writer.write(framed(attachment.AskStatus(number)))
    await until(lambda: node.node.request_table.applications == [])
    writer.transport.abort()


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 64))
def test_messages_are_cut_out_of_the_stream_however_it_is_chopped(bodies: list[bytes], step: int) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    unframer = Unframer()
    found = [body for at in range(0, len(stream), step) for body in unframer.feed(stream[at : at + step])]
    assert found == bodies


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_an_attachment_error(data: bytes) -> None:
    for read in (attachment.read_request, read_told):
        try:
            read(data)
        except AttachmentError:
            continue


def test_skipped_and_publication_survive_the_way() -> None:
    for told in (Skipped(bytes(32), bytes(32), 3, "why"), ReceivedVersion(*[bytes(32)] * 3, 1, 2, 3, b"a", b"c", None)):
        assert read_told(framed(told)[4:]) == told
