"""The API of a PSIRP application: attach to the node of this machine, publish and subscribe.

    async with await Client.attach(Path("/run/psph/node.sock")) as client:
        await client.publish(sid, rid, b"hello")
        subscription = await client.subscribe(sid, rid, listener)
        async for publication in client.publications(sid, rid):
            ...

An application that loses its node (it was restarted, say) notices nothing: the client attaches again, repeats what was
asked and not answered, and continues every subscription after the last version it has handed out.

A listener that is slow slows its publisher down, not the application's memory: the node sends only as much as was
handled.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import ROOT_SCOPE, ScopePolicy
from psirp_stack.node import attachment
from psirp_stack.node.attachment import (
    MAX_ATTRIBUTE_BYTES,
    MAX_CONTENT_BYTES,
    PROTOCOL_VERSION,
    Asked,
    AttachmentError,
    DemandChanged,
    Done,
    ItemsFound,
    NodeStatus,
    ReceivedVersion,
    Request,
    ScopeChanged,
    ServingChanged,
    Skipped,
    Told,
    VersionGot,
    Why,
)
from psirp_stack.node.connections import Connect, DirectConnection, NodeConnection, SocketConnection
from psirp_stack.node.connections import NotAttachedError as NotAttachedError
from psirp_stack.node.listeners import ItemListener, Parcel, PublicationListener, ScopeListener, SharedItem
from psirp_stack.node.server import Attachable
from psirp_stack.wire.numbers import ID_BYTES
from storage.backoff import BackOff, Waits

BETWEEN_ATTACHMENTS = BackOff(0.05, longest=2.0)
NOT_NOW = (Code.NO_RENDEZVOUS, Code.UNREACHABLE)
"""Refusals that say nothing of the request: the network may be whole again in a moment."""
NOT_THERE = (Code.ITEM_DOES_NOT_EXIST, Code.SCOPE_DOES_NOT_EXIST, Code.GONE)
"""Answers to who gets something once that say: nobody has it."""
GET_TOGETHER = 8
"""Items of a scope that are got at the same time."""
MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Content of this application's own publications that is kept to be repeated to a node that restarted."""

ROOT = Identifier(ROOT_SCOPE)


class PsirpError(Exception):
    """A request that the network refused, with the code and the reason it gave."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name.lower().replace('_', ' ')}: {reason}" if reason else code.name.lower())
        self.code = code
        self.reason = reason


class Client:
    """An application's attachment to a node. Make one with `Client.attach`, or with `Client.beside` a node of this
    process."""

    def __init__(self, connect: Connect, application: str) -> None:
        self._connect = connect
        self._application = application
        self._numbers = 0
        self._getting: dict[int, list[VersionGot]] = {}
        self._unanswered: dict[int, tuple[Asked, asyncio.Future[Told]]] = {}
        self._items: dict[ItemId, SharedItem] = {}
        self._scopes: dict[Identifier, list[ScopeListener]] = {}
        self._advertised: dict[ItemId, attachment.Publish | None] = {}
        self._kept_bytes = 0
        self._connection: NodeConnection | None = None
        self._attached = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._scope_tasks: set[asyncio.Future[None]] = set()
        self._wanted: set[ItemId] = set()
        self.on_demand: Callable[[ItemId, bool], None] | None = None
        """Told when the first subscriber of an item that is published or advertised here came, or the last went."""
        self.reattachments = 0
        self.on_listener_error: Callable[[ItemListener, Exception], None] | None = None
        """Told of exceptions that listeners raise; without it they go to the event loop's handler."""

    @classmethod
    async def attach(cls, path: Path, *, application: str = "application") -> Self:
        """Attach to the node at a Unix socket; `NotAttachedError` when there is none."""
        client = cls(partial(SocketConnection.open, path), application)
        try:
            connection = await SocketConnection.open(path)
        except OSError as error:
            raise NotAttachedError(
                f"no node at {path} ({error.strerror or error}); is `psph node` running there?"
            ) from None
        await client._begin(connection, str(path))
        return client

    @classmethod
    async def beside(cls, node: Attachable, *, application: str = "application") -> Self:
        """Attach to a node that runs in this process: no socket lies between. The node must outlive the client."""

        async def connect() -> NodeConnection:
            return DirectConnection(node)

        client = cls(connect, application)
        await client._begin(await connect(), "the node of this process")
        return client

    async def _begin(self, connection: NodeConnection, where: str) -> None:
        self._runner = asyncio.create_task(self._run(connection), name=f"attachment to {where}")
        await self._attached.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Detach: the node withdraws all that this application published and subscribed to."""
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
        # As they were: others may unsubscribe while one is awaited.
        for listener in [listener for shared in self._items.values() for listener in shared.listeners]:
            await listener.stop()
        for _, answer in self._unanswered.values():
            if not answer.done():
                answer.set_exception(NotAttachedError("the client was closed"))
        self._unanswered.clear()

    # Publishing.

    async def publish(self, sid: Identifier, rid: Identifier, content: bytes, attributes: bytes = b"") -> Identifier:
        """Publish a version and say its id. Waits while the network has no room for more."""
        if len(content) > MAX_CONTENT_BYTES:
            raise PsirpError(Code.TOO_LARGE, f"content has at most {MAX_CONTENT_BYTES} bytes, not {len(content)}")
        if len(attributes) > MAX_ATTRIBUTE_BYTES:
            raise PsirpError(
                Code.TOO_LARGE, f"attributes have at most {MAX_ATTRIBUTE_BYTES} bytes, not {len(attributes)}"
            )
        request = attachment.Publish(self._number(), bytes(sid), bytes(rid), content, attributes)
        done = _done(await self._ask(request))
        self._keep(ItemId(sid, rid), request)
        if done.version is None:
            raise PsirpError(Code.UNKNOWN_REQUEST, "the node did not name the version")
        return Identifier(done.version)

    async def advertise(self, sid: Identifier, rid: Identifier) -> None:
        """Be known as a publisher of the item before there is anything to publish."""
        _done(await self._ask(attachment.Advertise(self._number(), bytes(sid), bytes(rid))))
        self._advertised.setdefault(ItemId(sid, rid), None)

    def is_wanted(self, sid: Identifier, rid: Identifier) -> bool:
        """Whether somebody is subscribed to an item that is published or advertised here, on this node or elsewhere."""
        return ItemId(sid, rid) in self._wanted

    async def unpublish(self, sid: Identifier, rid: Identifier) -> None:
        """Be a publisher of the item no longer. Raises `PsirpError` for an item that this client does not publish."""
        item = ItemId(sid, rid)
        published = item in self._advertised
        self._forget(item)
        self._wanted.discard(item)
        told = await self._ask(attachment.Withdraw(self._number(), bytes(sid), bytes(rid)))
        if published and isinstance(told, Done) and told.code == Code.ITEM_DOES_NOT_EXIST:
            return  # a node that was started again meanwhile knows nothing of it: it is as it shall be
        _done(told)

    async def publish_scope(
        self, sid: Identifier, parent: Identifier = ROOT, policy: ScopePolicy | None = None
    ) -> None:
        """Make a scope under a parent, or put an existing one there as well; with a policy, say who may use it."""
        _done(await self._ask(attachment.LocalPublishScope(self._number(), bytes(sid), bytes(parent), policy)))

    async def unpublish_scope(self, sid: Identifier, parent: Identifier = ROOT) -> None:
        _done(await self._ask(attachment.LocalUnpublishScope(self._number(), bytes(sid), bytes(parent))))

    # Subscribing.

    async def subscribe(
        self,
        sid: Identifier,
        rid: Identifier,
        listener: PublicationListener,
        *,
        since: Identifier | None = None,
        future_only: bool = False,
        not_now: Callable[[str], object] | None = None,
    ) -> ItemListener:
        """Have `listener` called with the current version and all later ones, in order, each once.

        `since` names a version: all later ones follow as far as they are retained. `future_only`: not the current one.
        `not_now`: while no rendezvous answers it is told why, and the network is asked again, instead of `PsirpError`.
        """
        item = ItemId(sid, rid)
        shared = self._items.get(item)
        if shared is None:
            shared = self._items[item] = SharedItem(None if since is None else bytes(since), future_only)
            shared.asked = asyncio.ensure_future(self._ask(self._subscribe_request(item, shared)))
            shared.asked.add_done_callback(_noticed)
        subscription = ItemListener(item, listener, self)
        shared.listeners.append(subscription)
        if shared.latest is not None and not future_only:
            subscription.offer(Parcel(shared.latest, 0))
        try:
            while shared.asked is not None:
                # The request is shared as well: that one of those who wait gives up does not end it for the others.
                told = await asyncio.shield(shared.asked)
                if not_now is None or not isinstance(told, Done) or told.code not in NOT_NOW:
                    _done(told)
                    break
                not_now(told.reason)
                await asyncio.sleep(BETWEEN_ATTACHMENTS.longest)
                if shared.asked.done():  # nobody of those who share it has asked again yet
                    shared.asked = asyncio.ensure_future(self._ask(self._subscribe_request(item, shared)))
                    shared.asked.add_done_callback(_noticed)
        except PsirpError:
            await self._drop(shared, subscription)
            raise
        except BaseException:
            if await self._drop(shared, subscription):
                self._send(attachment.Unsubscribe(self._number(), bytes(sid), bytes(rid)))
            raise
        return subscription

    async def unsubscribe(self, subscription: ItemListener) -> None:
        item = subscription.item
        shared = self._items.get(item)
        if shared is not None and await self._drop(shared, subscription):
            _done(await self._ask(attachment.Unsubscribe(self._number(), bytes(item.sid), bytes(item.rid))))

    async def _drop(self, shared: SharedItem, subscription: ItemListener) -> bool:
        """Forget a listener; whether it was the item's last."""
        if subscription not in shared.listeners:
            return False
        shared.listeners.remove(subscription)
        last = not shared.listeners and self._items.get(subscription.item) is shared
        if last:
            del self._items[subscription.item]
        await subscription.stop()
        return last

    async def subscribe_sync(self, sid: Identifier, rid: Identifier, timeout: float) -> ReceivedVersion:  # noqa: ASYNC109  (the API's own)
        """Wait for one publication of the item: the current version, or the first one that comes."""
        async with asyncio.timeout(timeout):
            async with contextlib.aclosing(self.publications(sid, rid)) as publications:
                async for publication in publications:
                    return publication
        raise AssertionError("an endless iteration ended")

    async def read_current(self, sid: Identifier, rid: Identifier, timeout: float = 10.0) -> ReceivedVersion | None:  # noqa: ASYNC109
        """The current version; None when nobody publishes the item or nothing was published yet within `timeout`."""
        shared = self._items.get(ItemId(sid, rid))
        if shared is not None and shared.latest is not None:
            return shared.latest
        if not (await self.explain(sid, rid)).publishers:
            return None
        try:
            return await self.subscribe_sync(sid, rid, timeout)
        except TimeoutError:
            return None

    async def publications(
        self, sid: Identifier, rid: Identifier, *, since: Identifier | None = None, future_only: bool = False
    ) -> AsyncGenerator[ReceivedVersion, None]:
        """Publications of an item as they come; the next is taken from the network when this one was handled."""
        handed = asyncio.Queue[ReceivedVersion](maxsize=1)
        subscription = await self.subscribe(sid, rid, handed.put, since=since, future_only=future_only)
        try:
            while True:
                yield await handed.get()
        finally:
            await self.unsubscribe(subscription)

    # Getting, once.

    async def get(self, sid: Identifier, rid: Identifier) -> ReceivedVersion | None:
        """The current version, from the nearest node that has it, also when its publisher has gone; None if nobody has.

        Nothing is subscribed to. Where a scope is not for everybody only subscribers get anything: `read_current`.
        """
        return next(iter(await self.get_versions(sid, rid)), None)

    async def get_versions(
        self, sid: Identifier, rid: Identifier, first: int = -1, last: int = -1
    ) -> list[ReceivedVersion]:
        """Those of a range of versions that somebody has: 1 is a publisher's first, -1 its newest. Both ends count."""
        request = attachment.GetVersions(self._number(), bytes(sid), bytes(rid), first, last)
        got = self._getting[request.number] = []
        try:
            done = await self._ask(request)
        finally:
            del self._getting[request.number]
        if isinstance(done, Done) and done.code in NOT_THERE:
            return []
        _done(done)
        return [each.version for each in got]

    async def get_scope(self, sid: Identifier, prefix: bytes = b"") -> AsyncGenerator[ReceivedVersion, None]:
        """The current version of every published item of a scope whose Rid begins with these bytes, once."""
        after = Identifier(bytes(ID_BYTES))
        more = True
        while more:
            found = await self._ask(attachment.GetItems(self._number(), bytes(sid), prefix, bytes(after)))
            if not isinstance(found, ItemsFound):
                _done(found)
                return
            for start in range(0, len(found.rids), GET_TOGETHER):
                some = [Identifier(rid) for rid in found.rids[start : start + GET_TOGETHER]]
                for version in await asyncio.gather(*(self.get(sid, rid) for rid in some)):
                    if version is not None:
                        yield version
            more = found.more
            if found.rids:
                after = Identifier(found.rids[-1])

    async def subscribe_scope(self, sid: Identifier, listener: ScopeListener) -> None:
        """Have `listener` called for every scope and item that is, comes or goes directly under the scope."""
        listeners = self._scopes.setdefault(sid, [])
        listeners.append(listener)
        if len(listeners) == 1:
            try:
                _done(await self._ask(attachment.LocalSubscribeScope(self._number(), bytes(sid))))
            except BaseException:
                self._scopes.pop(sid, None)
                raise

    async def unsubscribe_scope(self, sid: Identifier) -> None:
        if self._scopes.pop(sid, None) is not None:
            _done(await self._ask(attachment.LocalUnsubscribeScope(self._number(), bytes(sid))))

    # Asking.

    async def explain(self, sid: Identifier, rid: Identifier) -> Why:
        """Why the item arrives or does not."""
        answer = await self._ask(attachment.AskExplanation(self._number(), bytes(sid), bytes(rid)))
        if isinstance(answer, Why):
            return answer
        done = _done(answer)
        raise PsirpError(Code(done.code), done.reason)

    async def status(self) -> str:
        """The node's account of itself, as JSON."""
        answer = await self._ask(attachment.AskStatus(self._number()))
        if isinstance(answer, NodeStatus):
            return answer.document
        done = _done(answer)
        raise PsirpError(Code(done.code), done.reason)

    async def paths(self, sid: Identifier, rid: Identifier, why: Why) -> str:
        """The links that the item's filters take, wanted or by mistake, as JSON; `why` says between whom."""
        asked = attachment.AskPaths(self._number(), bytes(sid), bytes(rid), why.publishers, why.subscribers)
        answer = await self._ask(asked)
        if isinstance(answer, NodeStatus):
            return answer.document
        done = _done(answer)
        raise PsirpError(Code(done.code), done.reason)

    def serving(self, sid: Identifier, rid: Identifier) -> ServingChanged | None:
        """Who serves a subscribed item at the moment, as far as the node has said."""
        shared = self._items.get(ItemId(sid, rid))
        return None if shared is None else shared.serving

    # What subscriptions call.

    def consumed(self, item: ItemId, parcel: Parcel) -> None:
        parcel.waiting -= 1
        if parcel.waiting == 0:
            size = len(parcel.publication.content)
            self._send(attachment.Consumed(bytes(item.sid), bytes(item.rid), size))

    def listener_failed(self, subscription: ItemListener, error: Exception) -> None:
        if self.on_listener_error is not None:
            self.on_listener_error(subscription, error)
            return
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a listener of {subscription.item} failed", "exception": error}
        )

    # The attachment itself.

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _ask(self, request: Asked) -> Told:
        if self._closed:
            raise NotAttachedError("the client was closed")
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._unanswered[request.number] = (request, answer)
        try:
            self._send(request)
            if self._connection is not None:
                await self._connection.drain()
            return await answer
        finally:
            self._unanswered.pop(request.number, None)

    def _send(self, request: Request) -> None:
        """Send if attached; what is unanswered is sent anyway after the next attachment."""
        if self._connection is not None:
            self._connection.send(request)

    async def _run(self, connection: NodeConnection) -> None:
        loop = asyncio.get_running_loop()
        waits = Waits(BETWEEN_ATTACHMENTS)
        while True:
            attached_at = loop.time()
            self._connection = connection
            self._wanted.clear()  # a node that was started again tells what it hears
            try:
                self._introduce()
                self._attached.set()
                async for told in connection.told():
                    self._told(told)
            except (OSError, AttachmentError):
                pass
            finally:
                self._connection = None
                connection.close()
            if loop.time() - attached_at > BETWEEN_ATTACHMENTS.longest:
                waits.reset()
            while True:
                # Also between two attachments that end at once, a node that refuses is not hurried.
                await asyncio.sleep(waits.next())
                with contextlib.suppress(OSError):
                    connection = await self._connect()
                    break
            self.reattachments += 1

    def _introduce(self) -> None:
        """Say who this is, and everything that a node which knows nothing of this application must know."""
        self._send(attachment.Attach(PROTOCOL_VERSION, self._application))
        asked = {type(request).__name__ + repr(_item_of(request)) for request, _ in self._unanswered.values()}
        for item, published in self._advertised.items():
            if published is not None:
                self._send(published)
            else:
                self._send(attachment.Advertise(self._number(), bytes(item.sid), bytes(item.rid)))
        for scope in self._scopes:
            self._send(attachment.LocalSubscribeScope(self._number(), bytes(scope)))
        for item, shared in self._items.items():
            if f"Subscribe{(bytes(item.sid), bytes(item.rid))!r}" not in asked:
                self._send(self._subscribe_request(item, shared))
        for request, _ in self._unanswered.values():
            self._send(request)

    def _subscribe_request(self, item: ItemId, shared: SharedItem) -> attachment.Subscribe:
        since = shared.since if shared.latest is None else shared.latest.version
        future_only = shared.future_only and shared.latest is None
        return attachment.Subscribe(self._number(), bytes(item.sid), bytes(item.rid), since, future_only)

    def _told(self, told: Told) -> None:
        match told:
            case ReceivedVersion():
                self._published(told)
            case Skipped():
                if shared := self._items.get(_item(told.sid, told.rid)):
                    for listener in shared.listeners:
                        listener.skipped.append(told)
            case DemandChanged():
                self._demand_changed(_item(told.sid, told.rid), told.wanted)
            case ServingChanged():
                if shared := self._items.get(_item(told.sid, told.rid)):
                    shared.serving = told
            case ScopeChanged():
                for scope_listener in self._scopes.get(Identifier(told.parent), ()):
                    self._tell_scope(scope_listener, told)
            case VersionGot():
                if told.number in self._getting:
                    self._getting[told.number].append(told)
            case Done() | Why() | NodeStatus() | ItemsFound():
                waiting = self._unanswered.get(told.number)
                if waiting is not None and not waiting[1].done():
                    waiting[1].set_result(told)

    def _demand_changed(self, item: ItemId, wanted: bool) -> None:
        if wanted:
            self._wanted.add(item)
        else:
            self._wanted.discard(item)
        if self.on_demand is not None:
            self.on_demand(item, wanted)

    def _published(self, publication: ReceivedVersion) -> None:
        shared = self._items.get(_item(publication.sid, publication.rid))
        if shared is None:
            return
        before = shared.latest
        if before is not None and (before.epoch, before.order) == (publication.epoch, publication.order):
            # Repeated after an attachment that ended before the application's room was given back.
            self._send(attachment.Consumed(publication.sid, publication.rid, len(publication.content)))
            return
        shared.latest = publication
        parcel = Parcel(publication, len(shared.listeners))
        for listener in shared.listeners:
            listener.offer(parcel)

    def _tell_scope(self, listener: ScopeListener, change: ScopeChanged) -> None:
        answer = listener(change)
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(answer)
            self._scope_tasks.add(task)
            task.add_done_callback(self._scope_tasks.discard)

    def _keep(self, item: ItemId, published: attachment.Publish) -> None:
        """Remember the latest publication of an item, for a node that forgot it; large ones only by name."""
        self._forget(item)
        if self._kept_bytes + len(published.content) <= MAX_KEPT_BYTES:
            self._kept_bytes += len(published.content)
            self._advertised[item] = published
        else:
            self._advertised[item] = None

    def _forget(self, item: ItemId) -> None:
        kept = self._advertised.pop(item, None)
        if kept is not None:
            self._kept_bytes -= len(kept.content)


def _item(sid: bytes, rid: bytes) -> ItemId:
    return ItemId(Identifier(sid), Identifier(rid))


def _item_of(request: Asked) -> tuple[bytes, bytes] | None:
    return (request.sid, request.rid) if isinstance(request, attachment.Subscribe) else None


def _noticed(asked: "asyncio.Future[Told]") -> None:
    """Whoever waited for it may have gone; an error is then nobody's."""
    if not asked.cancelled():
        asked.exception()


def _done(told: Told) -> Done:
    """The answer, if it says success; its code and reason as an exception otherwise."""
    if not isinstance(told, Done):
        raise PsirpError(Code.UNKNOWN_REQUEST, f"the node answered with {type(told).__name__}")
    if told.code != Code.SUCCESS:
        raise PsirpError(Code(told.code), told.reason)
    return told
