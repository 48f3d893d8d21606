"""What the hub acknowledged, what arrived, and what must therefore be true. No I/O, no clock.

What counts as acknowledged:
    subscribe, unsubscribe   answered 202 (asynchronous; the callback always confirms) or 204 (0.3's synchronous mode).
                             From then on the store holds either the result or the intent that leads to it.
    active                   the hub's diagnostics, or the store of the dead hub, showed the subscription with nothing
                             waiting for it. From then on it is there until somebody asks to unsubscribe.
    ping                     answered 204. From then on the store holds either the ping or a publication of content at
                             least as new as what the topic said when the ping was sent. A ping that brought its
                             content along leaves no ping in the store: the publication must be there at once.
    publication              in the store of a hub that was killed. Every subscription that was active before it was
                             accepted, and stayed so, gets it: it has arrived, or the store says that it is owed.

A request that got no answer may have been taken or not: the store of the dead hub says which, and is believed.
"""

from collections import Counter
from dataclasses import dataclass, field

from perf.numbered_feed import number_in
from trials.crash.stored import Pair, StoreSnapshot

SUBSCRIBE = "subscribe"
UNSUBSCRIBE = "unsubscribe"
PROBLEMS_KEPT = 50
PROBLEMS_TOLD = 10_000
LOST = "is lost"
"""How the name of every problem ends that means a loss."""


@dataclass(slots=True)
class PairAccount:
    """One (topic, callback)."""

    wanted: str | None = None
    """The mode of the last request that was acknowledged, or that the store turned out to hold."""
    uncertain: bool = False
    """A request was sent after that and has no answer yet."""
    active_since: float | None = None
    gone_at: int | None = None
    """The topic's number when the hub showed that the subscription is gone; None while it may be there."""
    arrived: set[int] = field(default_factory=set)
    newest: int = 0
    life: int = -1
    newest_in_life: int = 0
    arrived_in_life: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Open:
    """A publication that somebody is still to get."""

    id: int
    number: int
    accepted_at: float
    waiting: dict[Pair, int]


@dataclass(slots=True)
class Counts:
    subscribed: int = 0
    unsubscribed: int = 0
    pings: int = 0
    fat_pings: int = 0
    """Among the pings."""
    unanswered: int = 0
    refused: int = 0
    publications: int = 0
    delivered: int = 0
    duplicates: int = 0
    refused_by_callbacks: int = 0
    snapshots: int = 0


class CrashLedger:
    def __init__(self, pairs: dict[str, list[Pair]], numbers_of: dict[str, int]) -> None:
        """`pairs`: by topic. `numbers_of`: what each topic says now, kept by the publisher."""
        self.accounts: dict[Pair, PairAccount] = {pair: PairAccount() for group in pairs.values() for pair in group}
        self.counts = Counts()
        self.problems: Counter[str] = Counter()
        self.examples: list[str] = []
        self.duplicates_after_kill: Counter[int] = Counter()
        self.newest_publication = 0
        self._pairs = pairs
        self._numbers_of = numbers_of
        self._pinged: dict[str, list[tuple[int, float]]] = {topic: [] for topic in pairs}
        self._published: dict[str, int] = dict.fromkeys(pairs, 0)
        self._open: dict[int, Open] = {}
        self._told: set[tuple[str, str]] = set()
        self._changed_at: dict[tuple[str, int], float] = {}

    # What the driver did

    def changed(self, topic: str, number: int, now: float) -> None:
        """The topic says something new."""
        self._changed_at[topic, number] = now

    def asking(self, pair: Pair, mode: str) -> None:
        account = self.accounts[pair]
        account.uncertain = True
        if mode == UNSUBSCRIBE:
            account.active_since = None
        else:
            account.gone_at = None

    def acknowledged(self, pair: Pair, mode: str) -> None:
        account = self.accounts[pair]
        account.wanted = mode
        account.uncertain = False
        if mode == SUBSCRIBE:
            self.counts.subscribed += 1
        else:
            self.counts.unsubscribed += 1

    def seen(self, pair: Pair, active: bool, now: float) -> None:
        """The hub showed this pair's state, with nothing waiting for it."""
        account = self.accounts[pair]
        if account.uncertain:
            return
        if active != (account.wanted == SUBSCRIBE):
            self._problem("a subscription is shown wrongly", f"{pair}: wanted {account.wanted}, active: {active}")
        elif active and account.active_since is None:
            account.active_since = now
        elif not active and account.gone_at is None:
            account.gone_at = self._numbers_of[pair[0]]

    def ping_acknowledged(self, topic: str, number: int, sent_at: float) -> None:
        """`number` is what the topic said when the ping was sent."""
        self.counts.pings += 1
        self._pinged[topic].append((number, sent_at))

    # What arrived

    def attempted(self, pair: Pair, number: int, life: int) -> None:
        """A delivery came, whatever was answered."""
        account = self.accounts[pair]
        if account.life != life:
            account.life, account.newest_in_life = life, 0
            account.arrived_in_life = set()
        if number < account.newest_in_life:
            self._problem("out of order", f"{pair}: {number} after {account.newest_in_life} in one life of the hub")
        account.newest_in_life = max(account.newest_in_life, number)
        if account.gone_at is not None and number > account.gone_at:
            self._problem("an ended subscription came back", f"{pair}: got {number}, gone since {account.gone_at}")

    def arrived(self, pair: Pair, number: int, life: int) -> None:
        """A delivery came and was answered with success. Follows `attempted`."""
        account = self.accounts[pair]
        self.counts.delivered += 1
        if number in account.arrived_in_life:
            self._problem("repeated without a crash", f"{pair}: {number}")
        account.arrived_in_life.add(number)
        if number in account.arrived:
            self.counts.duplicates += 1
            self.duplicates_after_kill[life] += 1
        elif number < account.newest and self._was_active(pair, number):
            self._problem("out of order", f"{pair}: {number} for the first time after {account.newest}")
        account.arrived.add(number)
        account.newest = max(account.newest, number)

    # What the store says

    def check(self, snapshot: StoreSnapshot, now: float) -> None:
        """The hub is dead and this is its store. Also settles what became of requests without an answer."""
        self.counts.snapshots += 1
        if snapshot.integrity != "ok":
            self._problem("the store is damaged", snapshot.integrity)
        for pair in snapshot.dead_letters:
            self._problem("given up", f"{pair} has a dead letter, though its callback works")
        for pair, account in self.accounts.items():
            self._check_account(pair, account, snapshot, now)
        self._check_publications(snapshot)

    def check_end(self, snapshot: StoreSnapshot, now: float) -> None:
        """After a quiet time nothing may be open any more."""
        self.check(snapshot, now)
        left = len(snapshot.waiting) + len(snapshot.pings) + len(snapshot.fanouts) + len(snapshot.owed)
        if left:
            self._problem("not finished after the quiet time", f"{left} rows of open work, e.g. {_some(snapshot)}")
        for topic in snapshot.unwanted & {topic for topic, _ in snapshot.subscriptions}:
            self._problem("a ping is lost", f"{topic}: is taken for a topic that nobody wants")
        for publication in self._open.values():
            for pair in publication.waiting:
                self._problem("a delivery is lost", f"{pair}: {publication.number} never came")
        for topic, pings in self._pinged.items():
            for pair in self._pairs[topic]:
                account = self.accounts[pair]
                since = account.active_since
                if since is None:
                    continue
                owed = max((number for number, sent_at in pings if sent_at > since), default=0)
                if account.newest < owed:
                    self._problem("a ping is lost", f"{pair}: has {account.newest}, {owed} was acknowledged")

    def _check_account(self, pair: Pair, account: PairAccount, snapshot: StoreSnapshot, now: float) -> None:
        stored = pair in snapshot.subscriptions
        waiting = snapshot.waiting.get(pair)
        if account.uncertain:
            account.wanted = waiting or (SUBSCRIBE if stored else UNSUBSCRIBE)
            account.uncertain = False
        elif account.wanted == SUBSCRIBE and not stored and waiting != SUBSCRIBE:
            self._problem("a subscription is lost", f"{pair}: acknowledged, neither stored nor waiting")
        elif account.wanted == UNSUBSCRIBE and stored and waiting != UNSUBSCRIBE:
            self._problem("an ended subscription came back", f"{pair}: acknowledged, but stored")
        elif account.wanted is None and (stored or waiting):
            self._problem("a subscription nobody asked for", f"{pair}")
        if account.active_since is not None and not stored:
            self._problem("a subscription is lost", f"{pair}: it was active, it is not stored")
            account.active_since = None
        if account.gone_at is not None and stored:
            self._problem("an ended subscription came back", f"{pair}: it was gone, it is stored")
            account.gone_at = None
        if waiting is None:
            if stored and account.active_since is None:
                account.active_since = now
            elif not stored and account.gone_at is None:
                account.gone_at = self._numbers_of[pair[0]]

    def _check_publications(self, snapshot: StoreSnapshot) -> None:
        for stored in snapshot.publications:
            self.counts.publications += 1
            self.newest_publication = max(self.newest_publication, stored.id)
            number = number_in(stored.body)
            if number <= self._published[stored.topic]:
                self._problem("published twice", f"{stored.topic}: {number} after {self._published[stored.topic]}")
            self._published[stored.topic] = max(number, self._published[stored.topic])
            waiting = {
                pair: snapshot.subscriptions[pair]
                for pair in self._pairs[stored.topic]
                if self._is_owed(pair, stored.accepted_at)
            }
            self._open[stored.id] = Open(stored.id, number, stored.accepted_at, waiting)
        for topic, pings in self._pinged.items():
            number = max((number for number, _ in pings), default=0)
            if self._published[topic] < number and topic not in snapshot.pings | snapshot.unwanted:
                self._problem(
                    "a ping is lost", f"{topic}: {number} was acknowledged, {self._published[topic]} published"
                )
        for publication in list(self._open.values()):
            self._check_open(publication, snapshot)

    def _check_open(self, publication: Open, snapshot: StoreSnapshot) -> None:
        position = snapshot.fanouts.get(publication.id)
        for pair, subscription in list(publication.waiting.items()):
            if publication.number in self.accounts[pair].arrived or not self._is_owed(pair, publication.accepted_at):
                del publication.waiting[pair]
            elif (subscription, publication.id) not in snapshot.owed and (position is None or position >= subscription):
                self._problem("a delivery is lost", f"{pair}: {publication.number} has not come and is not owed")
                del publication.waiting[pair]
        if not publication.waiting:
            del self._open[publication.id]

    def _is_owed(self, pair: Pair, accepted_at: float) -> bool:
        since = self.accounts[pair].active_since
        return since is not None and since < accepted_at

    def _was_active(self, pair: Pair, number: int) -> bool:
        """Before the topic said this. Who came later may get it late, when a killed fan-out is repeated."""
        since = self.accounts[pair].active_since
        return since is not None and since < self._changed_at[pair[0], number]

    def _problem(self, kind: str, what: str) -> None:
        if (kind, what) in self._told:
            return  # what is lost is missing after every later kill too
        if len(self._told) < PROBLEMS_TOLD:
            self._told.add((kind, what))
        self.problems[kind] += 1
        if len(self.examples) < PROBLEMS_KEPT:
            self.examples.append(f"{kind}: {what}")


def _some(snapshot: StoreSnapshot) -> object:
    return next(
        (found for found in (snapshot.waiting, snapshot.pings, snapshot.fanouts, snapshot.owed) if found), "nothing"
    )
