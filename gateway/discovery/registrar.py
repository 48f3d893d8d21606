"""Keep one's own service record current at the zone's primary server: the asyncio shell around `registration.py`.

Every message goes over TCP and is signed, and an answer counts only if it is signed with the same key. A look at the
server precedes each update, so a refresh that finds all well writes nothing, and a record that somebody removed by
mistake comes back with the next one.
"""

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.message
import dns.query
import dns.tsig
import dns.update

from gateway.discovery.events import Observer, RecordConfirmed, RecordRemoved, RecordWritten, RegistrationFailed
from gateway.discovery.keys import UpdateKey, read_key
from gateway.discovery.model import MAX_16_BITS, DiscoveryError, check_seconds
from gateway.discovery.registration import (
    ChangedMeanwhileError,
    Endpoint,
    OwnRecord,
    Present,
    RecordPlace,
    RegistrationError,
    check_update,
    question,
    read_present,
    update_to_register,
    update_to_remove,
)
from storage.backoff import BackOff

MAX_FORMER = 16
"""Endpoints of this gateway that may still stand at the server and have to go."""
MAX_REASON = 300
"""Characters of an explanation: parts of it come from the server."""


@dataclass(frozen=True, slots=True)
class RegistrarConfig:
    domain: str
    server: str
    """Name or address of the zone's primary server."""
    key_file: Path
    record: OwnRecord
    zone: str | None = None
    """The zone that holds the domain; None: the domain is a zone itself."""
    port: int = 53
    interval: float = 300.0
    """Seconds between two looks at the record."""
    timeout: float = 5.0
    """Seconds for one message and its answer."""
    stop_timeout: float = 5.0
    """Seconds that the removal of the record may take at the end."""
    exchanges: int = 8
    """How often one attempt looks again because others changed the same records at the same moment."""
    back_off: BackOff = field(default_factory=BackOff)

    def __post_init__(self) -> None:
        RecordPlace.of(self.domain, self.zone)
        if not self.server:
            raise DiscoveryError("no server given: expected the name or address of the zone's primary server")
        if not 1 <= self.port <= MAX_16_BITS:
            raise DiscoveryError(f"server port {self.port}: expected 1 to {MAX_16_BITS}")
        for name in ("interval", "timeout", "stop_timeout"):
            check_seconds(f"registrar {name}", getattr(self, name))
        if self.exchanges < 1:
            raise DiscoveryError("the registrar's exchanges are 1 or more")


@dataclass(slots=True)
class RegistrarCounts:
    written: int = 0
    confirmed: int = 0
    removed: int = 0
    failed: int = 0
    lost_races: int = 0
    former_forgotten: int = 0


class Registrar:
    """`start` begins to keep the record, `change` says that it is another now, `stop` takes it away."""

    def __init__(
        self, config: RegistrarConfig, *, observer: Observer | None = None, rng: random.Random | None = None
    ) -> None:
        self.config = config
        self.counts = RegistrarCounts()
        self.problem: str | None = None
        """Why the record is not current, in words; None: it is, or nothing was tried yet."""
        self._place = RecordPlace.of(config.domain, config.zone)
        self._own = config.record
        self._former: dict[Endpoint, None] = {}
        self._stopping = False
        self._key: UpdateKey | None = None
        self._observer = observer
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def record(self) -> OwnRecord:
        return self._own

    async def start(self) -> None:
        """Begin; the first update is under way when this returns. Raises KeyFileError when there is no usable key."""
        if self._task is not None:
            raise DiscoveryError("the registrar is running already")
        self._key = read_key(self.config.key_file)
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._keep_current())

    def change(self, record: OwnRecord) -> None:
        """This gateway is reached elsewhere now, or wants another share: replace the record at once."""
        if record == self._own:
            return
        # Each may stand at the server, even if its update seemed to fail, until one exchange has cleared them all.
        self._former[self._own.endpoint] = None
        if len(self._former) > MAX_FORMER:
            del self._former[next(iter(self._former))]
            self.counts.former_forgotten += 1
        self._own = record
        self.refresh()

    def refresh(self) -> None:
        """Look at the record now instead of when the interval is over."""
        self._wake.set()

    async def stop(self) -> bool:
        """Take the own record away and end; answers whether it is gone. Never raises for what the server does."""
        task, self._task = self._task, None
        if task is None:
            return False
        self._stopping = True
        self._wake.set()
        try:
            async with asyncio.timeout(self.config.stop_timeout):
                # An exchange under way ends first: cut off, it could still take effect after the removal.
                await task
                await self._remove()
        except TimeoutError:
            self._failed(f"{self._where} did not answer within {self.config.stop_timeout:g} s", None)
        except RegistrationError as error:
            self._failed(error.reason, None)
        else:
            return True
        return False

    async def _keep_current(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await self._register()
            except RegistrationError as error:
                self._failures += 1
                wait = self.config.back_off.wait(self._failures, self._rng)
                self._failed(error.reason, wait)
            else:
                self._failures, self.problem = 0, None
                wait = self.config.interval
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _register(self) -> None:
        own, former = self._own, tuple(self._former)
        written = await self._exchange(lambda present: update_to_register(self._place, present, own, former))
        # If it was changed during the exchange, what stands there now is what has to go next.
        self._former = {} if self._own is own else {own.endpoint: None}
        if written:
            self.counts.written += 1
            self._tell(RecordWritten(self.name, str(own)))
        else:
            self.counts.confirmed += 1
            self._tell(RecordConfirmed(self.name, str(own)))

    async def _remove(self) -> None:
        endpoints = (*self._former, self._own.endpoint)
        if await self._exchange(lambda present: update_to_remove(self._place, present, endpoints)):
            self.counts.removed += 1
            self._tell(RecordRemoved(self.name, str(self._own)))

    async def _exchange(self, plan: Callable[[Present], dns.update.UpdateMessage | None]) -> bool:
        """Look, decide, update; again when others were quicker. Answers whether anything had to be written."""
        for _ in range(self.config.exchanges):
            update = plan(read_present(self._place, await self._send(question(self._place))))
            if update is None:
                return False
            try:
                check_update(self._place, await self._send(update))
            except ChangedMeanwhileError:
                self.counts.lost_races += 1
                continue
            return True
        raise RegistrationError(f"others changed {self.name} at the same moment {self.config.exchanges} times in a row")

    async def _send(self, message: dns.message.Message) -> dns.message.Message:
        if self._key is None:
            raise RegistrationError("the registrar was not started")
        message.use_tsig(self._key.for_signing())
        problem = f"{self._where} has no address"
        for address in await self._server_addresses():
            try:
                response = await dns.asyncquery.tcp(message, address, self.config.timeout, self.config.port)
            except (OSError, EOFError, dns.exception.Timeout) as error:
                problem = self._unreachable(error)
                continue
            except Exception as error:  # whatever the server sent, it ends in words and a later try
                raise RegistrationError(self._in_words(error)) from error
            if not response.had_tsig:
                raise RegistrationError(f"{self._where} did not sign its answer: it is not believed")
            return response
        raise RegistrationError(problem)

    async def _server_addresses(self) -> list[str]:
        try:
            async with asyncio.timeout(self.config.timeout):
                found = await asyncio.get_running_loop().getaddrinfo(
                    self.config.server, self.config.port, type=socket.SOCK_STREAM
                )
        except (OSError, UnicodeError) as error:
            reason = str(error) or "no answer in time"
            raise RegistrationError(f"the name server {self.config.server!r} cannot be found: {reason}") from error
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    @property
    def _where(self) -> str:
        return f"the name server {self.config.server} port {self.config.port}"

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, dns.exception.Timeout):
            return f"{self._where} did not answer within {self.config.timeout:g} s"
        return f"{self._where} cannot be reached: {error or 'it closed the connection'}"

    def _in_words(self, error: Exception) -> str:
        key = self._key.name if self._key is not None else "?"
        match error:
            case dns.tsig.PeerBadKey():
                return f"{self._where} does not know the key {key}"
            case dns.tsig.PeerBadSignature():
                return f"{self._where} has another secret for the key {key}"
            case dns.tsig.PeerBadTime() | dns.tsig.BadTime():
                return f"the clock here and that of {self._where} are too far apart for a signature"
            case dns.tsig.BadSignature() | dns.tsig.BadKey() | dns.tsig.BadAlgorithm():
                return f"the answer of {self._where} is not signed with the key {key}: it is not believed"
        return f"{self._where} sent no usable answer: {type(error).__name__} {error}"

    def _failed(self, reason: str, retry_in: float | None) -> None:
        self.problem = reason[:MAX_REASON]
        self.counts.failed += 1
        self._tell(RegistrationFailed(self.name, self.problem, retry_in))

    def _tell(self, event: RecordWritten | RecordConfirmed | RecordRemoved | RegistrationFailed) -> None:
        if self._observer is not None:
            self._observer(event)
