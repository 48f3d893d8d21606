"""People talking to each other behind the control function: the second protocol of a gateway.

Somebody publishes what they say on the item of their own name, and subscribes to the item of whom they talk to. What
arrived is confirmed on an item of the receiver beside their name (`bob@b.example/receipts`; a name cannot hold a `/`),
and a message that was missed, as a receipt for a later one shows, is sent again. Who opens a conversation says so
there as well, and gets what was said to them before.

Everything is on disk before it is answered or acknowledged, so a gateway that is killed goes on where it was.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

from exchange.keyed_work import KeyedWork
from exchange.model import SELF, Draft, Interest, LogEntry, Profile, SessionKey
from gateway.access.rules import Act
from gateway.control import Control
from gateway.converters.readable import essence
from gateway.events import GatewayEvent, GatewayStoreFailed, PublishFailed
from gateway.model import NOBODY_KNOWN, Asker, NetworkError, NotAllowedError, RefusedError
from gateway.protocols.chat.messages import (
    CONTENT_TYPE,
    MAX_RECEIVED,
    ChatError,
    ChatMessage,
    Receipt,
    address_of,
    checked_text,
    is_id,
    link_of,
    read,
    write_message,
    write_receipt,
)
from gateway.protocols.chat.store import ChatStore, Line, MessageState
from identifiers import ItemId, Naming, TopicError
from identifiers.lookalikes import shape, why_misleading
from identifiers.naming import split_user
from storage import StorageError, Transaction

T = TypeVar("T")
RECEIPTS = "/receipts"
PAGE = 200
SWEEP_EVERY = 600.0
DAY = 24 * 3600.0
RESERVED = frozenset({
    "abuse", "admin", "administrator", "all", "anonymous", "channel", "everybody", "everyone", "gateway", "guest",
    "help", "here", "hostmaster", "hub", "info", "mail", "me", "moderator", "nobody", "noreply", "null", "operator",
    "owner", "postmaster", "psph", "root", "security", "service", "staff", "support", "sysadmin", "system",
    "undefined", "webmaster", "you",
})  # fmt: skip
"""Names that speak for whoever runs a place: nobody may have them, nor ones that look like them."""


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """`domain` is the part after the @ of everybody here."""

    domain: str
    max_users: int = 10_000
    max_partners: int = 50
    keep: int = 1_000
    """Messages of each conversation that are kept."""
    max_waiting: int = 200
    """Messages of one person that the network has not taken yet."""
    max_user_characters: int = 64
    idle_days: float = 90.0
    """A name that nobody used for so long is free again, and its history gone."""
    unused_days: float = 1.0
    """The same for a name that never talked to anybody."""
    messages_per_second: float = 2.0
    message_burst: float = 20.0
    max_attempts: int = 3
    publish_timeout: float = 15.0
    max_pages: int = 2_000
    max_pages_per_user: int = 8
    max_pages_per_client: int = 200
    """Of one address, whatever the names: many people may be behind it, but nobody shuts the others out alone."""
    heartbeat: float = 20.0
    write_timeout: float = 30.0


class TakenError(Exception):
    """Somebody else has that name here."""


def check_looks(name: str) -> None:
    """`ChatError` for a name that may be taken for another one."""
    wrong = why_misleading(name)
    if wrong is not None:
        raise ChatError(f"{name} cannot be somebody's name: {wrong}")


class ChatAdapter:
    name = "chat"
    hears_own = True
    """People of one gateway talk to each other, too."""
    keeps_rules = True

    def __init__(
        self,
        config: ChatConfig,
        naming: Naming,
        control: Control,
        store: ChatStore,
        clock: Callable[[], float],
        observer: Callable[[GatewayEvent], None] | None = None,
    ) -> None:
        self.config = config
        self.domain = split_user(f"somebody@{config.domain}")[1]
        self.store = store
        self._naming = naming
        self._control = control
        self._clock = clock
        self._observer = observer
        self._pages: dict[str, set[asyncio.Event]] = {}
        self._sending = KeyedWork(self._send, self._stumbled)
        self._confirming = KeyedWork(self._confirm, self._stumbled)
        self._sweeping: asyncio.Task[None] | None = None
        self.closing = False

    # What the control function needs.

    def item_of(self, what: str) -> ItemId:
        address = what.removesuffix(RECEIPTS)
        try:
            if address == what:
                return self._naming.of_user(address)
            user, domain = split_user(address)
        except TopicError as error:
            raise RefusedError(str(error)) from None
        return ItemId(self._naming.of_seed(domain), self._naming.of_seed(user + RECEIPTS))

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        if entry.draft.profile is not Profile.MESSAGE:
            raise RefusedError(f"a publication of the profile {entry.draft.profile!s} is no message")
        # Only chat can publish this type: whoever says something under another does not speak for a person.
        if essence(entry.draft.content_type) != CONTENT_TYPE:
            raise RefusedError(f"a message in {entry.draft.content_type[:100]} is none of a chat")
        try:
            document = read(entry.draft.body)
        except ChatError as error:
            raise RefusedError(str(error)) from None
        for interest in interests:
            partner = interest.name.removesuffix(RECEIPTS)
            # On the item of somebody's name stands only what they say themselves.
            if document.creator != partner:
                raise RefusedError(f"{document.creator} wrote on the item of {partner}")
            await self._take(document, key.who, is_receipt=partner != interest.name)

    async def _take(self, document: ChatMessage | Receipt, user: str, *, is_receipt: bool) -> None:
        if isinstance(document, Receipt):
            if is_receipt and document.to == user:
                received, begins = document.received, document.begins
                work = partial(ChatStore.delivered, user, document.creator, received, begins, self.config.max_attempts)
                if await self._write(work):
                    self._sending.wake(user)
                self._changed(user)
        elif not is_receipt and document.to in ("", user):
            now = self._clock()
            # A clock that is ahead must not put a message behind everything that is said later.
            at = min(document.at, now) if document.at > 0 else now
            line = Line(0, user, document.creator, False, document.id, document.text, at, MessageState.OWED, 1, 0)
            if await self._write(partial(_arrive_if_talking, line, self.config.keep)):
                self._changed(user)
            self._confirming.wake((user, document.creator))

    # Life.

    async def start(self) -> None:
        """Be subscribed to exactly those somebody talks to, and go on sending and confirming."""
        await asyncio.to_thread(_reserved_shapes)  # loads a table, which would hold up everybody later
        await self._write(ChatStore.know_shapes)
        await self.keep_to_rules()
        for user in self.store.senders():
            self._sending.wake(user)
        for conversation in self.store.debtors():
            self._confirming.wake(conversation)
        self._sweeping = asyncio.create_task(self._sweep())

    async def keep_to_rules(self) -> int:
        """Hear exactly those somebody talks to and may hear; says how many conversations no longer hear anybody.

        A conversation that the rules forbid stays, with what was said, and goes on when they allow it again.
        """
        held = {(one.who, one.what) for one in await self._control.held(self.name)}
        wanted: set[tuple[str, str]] = set()
        forbidden = 0
        after = ("", "")
        while page := self.store.conversations(after, PAGE):
            after = page[-1]
            for user, partner in page:
                if self._may_hear(partner):
                    wanted.update((user, what) for what in (partner, partner + RECEIPTS))
                else:
                    forbidden += (user, partner) in held
        for user, what in sorted(held - wanted):
            await self._control.unsubscribe(self, user, what)
        for user, what in sorted(wanted - held):
            with contextlib.suppress(RefusedError):  # limits that are lower now; all others are still heard
                await self._control.subscribe(self, user, what)
        return forbidden

    def _may_hear(self, partner: str) -> bool:
        try:
            self._control.check(Act.SUBSCRIBE, partner)
        except NotAllowedError:
            return False
        return True

    def close(self) -> None:
        """End the pages' connections; they come back to whoever listens then."""
        self.closing = True
        for pages in self._pages.values():
            for page in pages:
                page.set()

    async def stop(self) -> None:
        self.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._sending.stop()
        await self._confirming.stop()

    # For the pages.

    @property
    def open_pages(self) -> int:
        return sum(map(len, self._pages.values()))

    def address(self, user: str) -> str:
        """The full name of somebody here; `ChatError` for what is no name, or one of another domain."""
        text = user.strip()
        address = address_of(text if "@" in text else f"{text}@{self.domain}")
        name, _, domain = address.rpartition("@")
        if domain != self.domain:
            raise ChatError(f"names here end in @{self.domain}")
        if len(name) > self.config.max_user_characters:
            raise ChatError(f"a name has at most {self.config.max_user_characters} characters")
        return address

    async def claim(self, user: str) -> tuple[str, str]:
        """A name for the one who asks first, with the token that proves it. `ChatError`, `TakenError`."""
        address = self.address(user)
        name = split_user(address)[0]
        check_looks(name)
        if _bare(shape(name)) in _reserved_shapes():
            raise ChatError(f"{name} is a name that nobody may have here, or looks like one: choose another name")
        token = secrets.token_urlsafe(32)
        work = partial(ChatStore.claim, address, token, shape(name), self._clock(), self.config.max_users)
        done = await self._write(work)
        if done is None:
            raise TakenError(f"there are {self.config.max_users} names here, which is the limit")
        if not done:
            raise TakenError(f"{address}, or somebody whose name looks the same, is here: choose another name")
        return address, token

    async def seen(self, user: str) -> None:
        await self._write(partial(ChatStore.seen, user, self._clock()))

    async def leave(self, user: str) -> None:
        """Give the name back: what was said under it is gone from here."""
        for partner in self.store.partners(user):
            await self._unfollow(user, partner)
        await self._write(partial(ChatStore.forget_user, user))
        self._changed(user)

    async def open(self, user: str, partner: str) -> str:
        """Talk to somebody: their messages come from now on. `ChatError`, `NotAllowedError`."""
        address = address_of(partner)
        if address == user:
            raise ChatError("that is yourself")
        check_looks(split_user(address)[0])
        self._control.check(Act.SUBSCRIBE, address)
        if not await self._write(partial(ChatStore.open, user, address, self._clock(), self.config.max_partners)):
            raise ChatError(f"you talk to {self.config.max_partners} people, which is the limit: leave one first")
        try:
            await self._follow(user, address)
        except RefusedError as error:
            await self._unfollow(user, address)
            await self._write(partial(ChatStore.close, user, address))
            raise ChatError(str(error)) from None
        self._confirming.wake((user, address))
        return address

    async def end(self, user: str, partner: str) -> None:
        address = address_of(partner)
        await self._unfollow(user, address)
        await self._write(partial(ChatStore.close, user, address))

    async def say(self, user: str, partner: str, text: str, name: str, asker: Asker = NOBODY_KNOWN) -> Line:
        """Take a message for a partner, or for everybody who follows the writer: then it is said to oneself. It is on
        disk when this returns and goes out as soon as it can. `ChatError`, `NotAllowedError`."""
        address = address_of(partner)
        text = checked_text(text)
        if not is_id(name):
            raise ChatError("the id of a message is up to 64 letters, digits, - and _")
        if address != user and not self.store.has_partner(user, address):
            raise ChatError(f"you do not talk to {address}")
        # On the item of one's own name: that is where it is published.
        self._control.check(Act.PUBLISH, user, asker)
        line = Line(0, user, address, True, name, text, self._clock(), MessageState.WAITING, 1, 0)
        said = await self._write(partial(ChatStore.say, line, self.config.keep, self.config.max_waiting))
        if said is None:
            raise ChatError(f"{self.config.max_waiting} of your messages wait for the network: try again later")
        self._sending.wake(user)
        self._changed(user)
        return said

    def watch(self, user: str) -> asyncio.Event | None:
        """An event that is set when something changed for a user; None when there are too many pages."""
        pages = self._pages.setdefault(user, set())
        if self.closing or self.open_pages >= self.config.max_pages or len(pages) >= self.config.max_pages_per_user:
            if not pages:
                del self._pages[user]
            return None
        event = asyncio.Event()
        pages.add(event)
        return event

    def unwatch(self, user: str, event: asyncio.Event) -> None:
        pages = self._pages.get(user, set())
        pages.discard(event)
        if not pages:
            self._pages.pop(user, None)

    # In the background.

    async def _send(self, user: str) -> bool:
        """Publish what a user said, in order. Whether nothing is left."""
        while lines := self.store.to_send(user, PAGE):
            for line in lines:
                to = "" if line.partner == line.user else line.partner
                message = ChatMessage(line.id, line.user, line.text, line.at, to, line.attempt)
                state = await self._publish(line.user, line.user, write_message(message))
                if state is None:
                    return False
                await self._write(partial(ChatStore.settle, line.place, MessageState.WAITING, state))
                self._changed(line.user)
        return True

    async def _confirm(self, conversation: tuple[str, str]) -> bool:
        """Tell a partner what arrived from them, and the first time that somebody listens."""
        user, partner = conversation
        while (greeted := self.store.is_greeted(user, partner)) is not None:
            owed = self.store.owed(user, partner, MAX_RECEIVED)
            if greeted and not owed:
                return True
            names = [line.id for line in owed]
            # The latest ones again, which costs little: a receipt that was lost is no loss then.
            latest = self.store.received(user, partner, MAX_RECEIVED)
            names += [name for name in latest if name not in names][: MAX_RECEIVED - len(names)]
            receipt = Receipt(secrets.token_hex(8), user, partner, tuple(names), begins=not greeted)
            if await self._publish(user, user + RECEIPTS, write_receipt(receipt)) is None:
                return False
            await self._write(partial(_confirmed, user, partner, [line.place for line in owed]))
        return True

    async def _publish(self, user: str, what: str, document: bytes) -> MessageState | None:
        """What became of it; None when it is to be tried again."""
        try:
            async with asyncio.timeout(self.config.publish_timeout):
                await self._control.publish(
                    self,
                    Draft(self.item_of(what), what, Profile.MESSAGE, CONTENT_TYPE, document, ((SELF, link_of(user)),)),
                )
        except (NetworkError, RefusedError, TimeoutError) as error:
            lasting = error.lasting if isinstance(error, NetworkError) else isinstance(error, RefusedError)
            self._tell(PublishFailed(what, str(error) or "the network did not take it in time", lasting))
            return MessageState.FAILED if lasting else None
        return MessageState.SENT

    async def _sweep(self) -> None:
        while True:
            try:
                now = self._clock()
                idle, unused = (now - days * DAY for days in (self.config.idle_days, self.config.unused_days))
                for user in self.store.idle_users(idle, unused, PAGE):
                    if user not in self._pages:
                        await self.leave(user)
            except StorageError as error:
                self._tell(GatewayStoreFailed(str(error)))
            await asyncio.sleep(SWEEP_EVERY)

    # Small things.

    async def _follow(self, user: str, partner: str) -> None:
        for what in (partner, partner + RECEIPTS):
            await self._control.subscribe(self, user, what)

    async def _unfollow(self, user: str, partner: str) -> None:
        for what in (partner, partner + RECEIPTS):
            with contextlib.suppress(RefusedError):
                await self._control.unsubscribe(self, user, what)

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        return await asyncio.wrap_future(self.store.database.write(work))

    def _changed(self, user: str) -> None:
        for page in self._pages.get(user, ()):
            page.set()

    def _stumbled(self, reason: str) -> None:
        self._tell(GatewayStoreFailed(reason))

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _arrive_if_talking(line: Line, keep: int, tx: Transaction) -> bool:
    """A message for somebody who has left meanwhile is not written down."""
    if not tx.execute("SELECT 1 FROM chat_partners WHERE user = ? AND partner = ?", (line.user, line.partner)):
        return False
    return ChatStore.arrive(line, keep, tx)


def _confirmed(user: str, partner: str, places: Sequence[int], tx: Transaction) -> None:
    ChatStore.acknowledged(places, tx)
    ChatStore.greeted(user, partner, tx)


def _bare(name: str) -> str:
    return "".join(character for character in name if character.isalnum())


@cache
def _reserved_shapes() -> frozenset[str]:
    return frozenset(map(shape, RESERVED))
