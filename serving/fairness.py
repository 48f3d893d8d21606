"""Fair shares of what is scarce (lanes, checks, parser time), by where a server is and not by what it is called.

Names cost nothing: whoever runs one machine can have thousands. So everything here is counted by prefix, the network
around the address that a name was last connected to. No I/O, no clock: who connects says what was connected to.

    prefix_of       address -> prefix: a /24 of IPv4, a /64 of IPv6
    KnownPrefixes   name -> prefix, as learned from connections
    Shares          who holds how many of a bounded number of lanes
    FairQueue       what waits for a lane: prefixes take turns, and within one the names do; names that nobody has
                    connected to share a part of the lanes, those that led nowhere a small one
    TimeBudgets     seconds that each prefix has left

How a share is kept although a name says nothing: a request is started under the prefix its name had last. When the
socket is opened the address is certain; the lane is then moved to its prefix (`Shares.move`), or the connection is
not made because that prefix has its share already, and what wanted it waits under its right prefix.
"""

from collections import OrderedDict, deque
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Generic, TypeVar

from serving.limits import Rate

Item = TypeVar("Item")

IPV4_BITS = 24
IPV6_BITS = 64
MAX_NAMES = 65_536
_UNKNOWN, _NOWHERE = "~", "~~"
"""What the prefixes begin with of names that nobody has connected to, and of those where it was tried in vain."""
NOWHERE_PART = 4
"""The names that led nowhere share this part of what unknown ones share."""
ADDRESSES_KEPT = 4_096
LONGEST_ADDRESS = 64
"""Characters: of IPv6 with a zone, and more."""
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32_BITS = 0xFFFF_FFFF


def prefix_of(address: str, port: int = 0) -> str:
    """What requests to this numeric address are counted by; anything else is counted by itself.

    Addresses that are private are the operator's own, where neighbours are strangers to each other: each counts by
    itself, and on loopback, where one address has all services, each port.
    """
    # Reading an address takes longer than all else that is done to count a request, and the same ones come again.
    return _prefix_of(address, port) if len(address) <= LONGEST_ADDRESS else address[:256]


@lru_cache(maxsize=ADDRESSES_KEPT)
def _prefix_of(address: str, port: int) -> str:
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return address[:256]
    if isinstance(parsed, IPv6Address):
        parsed = _carried(parsed) or parsed
    if parsed.is_loopback:
        return f"{parsed}:{port}"
    if parsed.is_private and not _is_documentation(parsed):
        return str(parsed)
    bits = IPV4_BITS if parsed.version == 4 else IPV6_BITS
    kept = int(parsed) >> (parsed.max_prefixlen - bits) << (parsed.max_prefixlen - bits)
    return f"{type(parsed)(kept)}/{bits}"


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: 6to4 alone would give its holder 65,536 prefixes."""
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    return IPv4Address(int(address) & _LOW_32_BITS) if address in _NAT64 else None


def _is_documentation(address: IPv4Address | IPv6Address) -> bool:
    """Trial networks use these in the place of public ones, and should see what the public sees."""
    return any(address.version == network.version and address in network for network in _DOCUMENTATION)


class KnownPrefixes:
    """Which prefix a name (`host` or `host:port`, as it stands in URLs) was last connected to.

    A name that nobody has connected to yet is counted with all unknown names below the same domain, so that a domain's
    thousand names do not look like a thousand servers until they are known. Domains do not cost much either, and a name
    server that never answers holds a lane for as long as a request may take: so what leads nowhere is remembered too.
    """

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._prefixes: OrderedDict[str, str] = OrderedDict()
        self._nowhere: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prefixes)

    def of(self, name: str) -> str:
        known = self._prefixes.get(name)
        return self._unconnected(name) if known is None else known

    def of_url(self, url: str) -> str:
        return self.of(name_in(url))

    def learn(self, name: str, address: str, port: int) -> str:
        """A connection for this name is being made to this address."""
        prefix = prefix_of(address, port)
        self._prefixes[name] = prefix
        self._prefixes.move_to_end(name)
        self._nowhere.pop(name, None)
        if len(self._prefixes) > self._max_names:
            self._prefixes.popitem(last=False)
        return prefix

    def led_nowhere(self, name: str) -> None:
        """A request ended before there was an address to connect to."""
        if name not in self._prefixes:
            self._nowhere[name] = None
            self._nowhere.move_to_end(name)
            if len(self._nowhere) > self._max_names:
                self._nowhere.popitem(last=False)

    def _unconnected(self, name: str) -> str:
        host, port = _split(name)
        try:
            ip_address(host)
        except ValueError:
            kind = _NOWHERE if name in self._nowhere else _UNKNOWN
            return kind + ".".join(host.rstrip(".").split(".")[-2:])[:256]
        return prefix_of(host, port)


def name_in(url: str) -> str:
    """Host and port of an accepted URL, in lower case."""
    rest = url.partition("://")[2]
    for end in ("/", "?", "#"):
        rest = rest.partition(end)[0]
    return rest.rpartition("@")[2].lower()


def _split(name: str) -> tuple[str, int]:
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        port = rest.removeprefix(":")
    elif name.count(":") == 1:
        host, _, port = name.partition(":")
    else:
        host, port = name, ""
    return host, int(port) if port.isascii() and port.isdigit() else 0


KNOWN, UNKNOWN, NOWHERE = KINDS = range(3)
"""How much is known of where a name leads. Numbers, for lists: every delivery asks."""


def kind_of(prefix: str) -> int:
    if prefix[:1] != _UNKNOWN:
        return KNOWN
    return NOWHERE if prefix[1:2] == _UNKNOWN else UNKNOWN


class Shares:
    """Lanes that prefixes hold: at most `total` in all, and `each` by one prefix; `unknown` by all unknown names."""

    def __init__(self, total: int, each: int, unknown: int | None = None) -> None:
        self.total = total
        self.each = each
        self.held = 0
        self._held_by: dict[str, int] = {}
        self.tells_kinds = unknown is not None
        unknown = total if unknown is None else unknown
        self._most = [total, unknown, max(1, unknown // NOWHERE_PART)]
        self._held_of = [0 for _ in KINDS]

    def held_by(self, prefix: str) -> int:
        return self._held_by.get(prefix, 0)

    @property
    def has_room(self) -> bool:
        return self.held < self.total

    def has_room_for(self, prefix: str) -> bool:
        return self._held_by.get(prefix, 0) < self.each

    def has_room_of(self, kind: int) -> bool:
        return self.held < self.total and self._held_of[kind] < self._most[kind]

    def acquire(self, prefix: str) -> bool:
        """Take a lane; False when there is none, or the prefix or its kind has its share."""
        kind = kind_of(prefix) if self.tells_kinds else KNOWN
        of_kind, of_prefix = self._held_of, self._held_by.get(prefix, 0)
        if of_prefix >= self.each or self.held >= self.total or of_kind[kind] >= self._most[kind]:
            return False
        self.held += 1
        of_kind[kind] += 1
        self._held_by[prefix] = of_prefix + 1
        return True

    def release(self, prefix: str) -> None:
        """Give back a lane that was taken or moved to this prefix."""
        left = self._held_by[prefix] - 1
        self.held -= 1
        self._held_of[kind_of(prefix) if self.tells_kinds else KNOWN] -= 1
        if left:
            self._held_by[prefix] = left
        else:
            del self._held_by[prefix]

    def move(self, before: str, after: str) -> bool:
        """A lane turns out to be used elsewhere; False (and nothing moves) when that prefix has its share."""
        if before == after:
            return True
        if self._held_by.get(after, 0) >= self.each:
            return False
        self.release(before)
        self.held += 1
        self._held_of[kind_of(after) if self.tells_kinds else KNOWN] += 1
        self._held_by[after] = self._held_by.get(after, 0) + 1
        return True


class _Waiting(Generic[Item]):
    """What waits under one prefix; the names take turns."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: OrderedDict[str, deque[Item]] = OrderedDict()

    def put(self, name: str, item: Item) -> None:
        line = self.by_name.get(name)
        if line is None:
            line = self.by_name[name] = deque()
        line.append(item)

    def take(self) -> Item:
        name, line = self.by_name.popitem(last=False)
        item = line.popleft()
        if line:
            self.by_name[name] = line
        return item


class FairQueue(Generic[Item]):
    """What waits for a lane. `put` brings it in, `take` gives it a lane, `release` ends that.

    Prefixes take turns, within one the names do, and within a name it is first come, first served. What leads to known
    places, to unknown ones and nowhere takes turns too, as far as its kind has lanes.
    """

    def __init__(self, total: int, each: int, unknown: int | None = None) -> None:
        self.shares = Shares(total, each, unknown)
        self._ready: list[OrderedDict[str, _Waiting[Item]]] = [OrderedDict() for _ in KINDS]
        """Prefixes that wait and have not got their share; the first is next."""
        self._turns = list(KINDS)
        self._held: dict[str, _Waiting[Item]] = {}
        """Prefixes that wait and have their share."""

    def put(self, prefix: str, name: str, item: Item) -> None:
        ready = self._ready[kind_of(prefix) if self.shares.tells_kinds else KNOWN]
        lines = self._held.get(prefix) or ready.get(prefix)
        if lines is None:
            lines = _Waiting()
            if self.shares.has_room_for(prefix):
                ready[prefix] = lines
            else:
                self._held[prefix] = lines
        lines.put(name, item)

    def take(self) -> tuple[str, Item] | None:
        """The next item and the prefix it holds a lane under, until `release`. None when nothing can start now."""
        turns, ready = self._turns, self._ready
        for at, kind in enumerate(turns):
            if ready[kind] and (found := self._take(kind)) is not None:
                if at < NOWHERE:
                    turns.append(turns.pop(at))
                return found
        return None

    def _take(self, kind: int) -> tuple[str, Item] | None:
        ready = self._ready[kind]
        while ready and self.shares.has_room_of(kind):
            prefix, lines = ready.popitem(last=False)
            if not self.shares.acquire(
                prefix
            ):  # its share went to lanes that were moved here, or taken without an item
                self._held[prefix] = lines
                continue
            item = lines.take()
            if lines.by_name:
                (ready if self.shares.has_room_for(prefix) else self._held)[prefix] = lines
            return prefix, item
        return None

    def acquire(self, prefix: str) -> bool:
        """A lane for something that does not wait."""
        return self.shares.acquire(prefix)

    def release(self, prefix: str) -> None:
        self.shares.release(prefix)
        self._let_in(prefix)

    def move(self, before: str, after: str) -> bool:
        """As `Shares.move`."""
        moved = self.shares.move(before, after)
        if moved:
            self._let_in(before)
        return moved

    def _let_in(self, prefix: str) -> None:
        if prefix in self._held and self.shares.has_room_for(prefix):
            kind = kind_of(prefix) if self.shares.tells_kinds else KNOWN
            self._ready[kind][prefix] = self._held.pop(prefix)


class TimeBudgets:
    """Seconds that each prefix may still use: `rate.per_second` come back, at most `rate.burst` are saved up.

    What is used is only known afterwards, so a budget may be overdrawn once; it is then paid back first. Budgets that
    nobody has used for longest are forgotten first.
    """

    def __init__(self, rate: Rate, max_prefixes: int = MAX_NAMES) -> None:
        self._rate = rate
        self._max_prefixes = max_prefixes
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def left(self, prefix: str, now: float) -> float:
        left, at = self._left.get(prefix, (self._rate.burst, now))
        return min(self._rate.burst, left + max(0.0, now - at) * self._rate.per_second)

    def spend(self, prefix: str, seconds: float, now: float) -> None:
        self._left[prefix] = (self.left(prefix, now) - seconds, now)
        self._left.move_to_end(prefix)
        if len(self._left) > self._max_prefixes:
            self._left.popitem(last=False)


_DOCUMENTATION = tuple(
    ip_network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "198.18.0.0/15")
)
