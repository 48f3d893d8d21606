"""The rendezvous as a node runs it: requests in, outcomes out once they are on disk.

A thin shell around the core (`requests`, `scopes`, `session`, `sweeps`), which runs in the store's writer thread, one
transaction for each request, committed in groups. Kept in memory are only things that may be lost: leases, what
was refused lately, which matches topology has not answered. Call everything here from one thread.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from psirp_stack.authentication.signing import Signable
from psirp_stack.authentication.trust import TrustStore
from psirp_stack.authentication.verifying import SignatureVerifier
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    Credential,
    DeclarationsRefused,
    Declare,
    Explain,
    KeepAlive,
    Match,
    MatchServed,
    PublishItem,
    RendezvousRequest,
    Reply,
    ScopePublished,
    ScopeUnpublished,
    TopologyStarted,
    decode,
)
from psirp_stack.rendezvous.config import RendezvousConfig
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE
from psirp_stack.rendezvous.events import (
    BoundReached,
    LeaseEnded,
    MatchesSaid,
    Observer,
    RendezvousEvent,
    RequestHandled,
    WorkFailed,
)
from psirp_stack.rendezvous.former import FormerHolders
from psirp_stack.rendezvous.leases import Leases
from psirp_stack.rendezvous.outcome import OutcomeBuilder, RequestOutcome
from psirp_stack.rendezvous.refusals import RecentRefusals
from psirp_stack.rendezvous.requests import NO_PROOF, Asked, Proof, decide
from psirp_stack.rendezvous.schema import MIGRATIONS
from psirp_stack.rendezvous.session import RendezvousSession
from psirp_stack.rendezvous.sweeps import end_lease, sweep
from psirp_stack.rendezvous.topology import begin_repeat, begin_resync, note_served
from psirp_stack.rendezvous.unanswered import Unanswered
from storage import Database, StorageError, Transaction

RETRY_AFTER = 1.0
"""Seconds until background work that failed (a full disk) is tried again."""


@dataclass(frozen=True, slots=True)
class _EndLeases:
    """Work: these nodes, in these lives, said nothing for too long."""

    nodes: tuple[tuple[str, int], ...]

    def __call__(self, session: RendezvousSession) -> None:
        for name, boot in self.nodes:
            end_lease(session, name, boot)


@dataclass(frozen=True, slots=True)
class Statistics:
    """For people who look at a running rendezvous."""

    nodes: int
    scopes: int
    items: int
    memberships: int
    generation: int
    unanswered_matches: int
    replies: dict[str, int]


class Rendezvous:
    def __init__(
        self,
        database: Database,
        config: RendezvousConfig,
        now: float,
        verifier: SignatureVerifier | None = None,
        observer: Observer | None = None,
    ) -> None:
        """On an open database that has `MIGRATIONS`. Waits for a first write: make it before the event loop is busy.

        The observer is called from the store's thread as well as from the caller's.
        """
        self._database = database
        self._config = config
        self._verifier = verifier or SignatureVerifier(TrustStore())
        self._observer = observer
        self._lock = threading.Lock()
        self._leases = Leases(config.lease, config.max_nodes)
        self._refusals = RecentRefusals(config.max_items_with_refusals, config.max_refusals_per_item)
        self._replies: Counter[str] = Counter()
        self._now = now
        self._sweep_at: float | None = now
        self._sweeping = False
        self._again: deque[Callable[[RendezvousSession], None]] = deque()
        """What nobody asks for a second time: done again when it failed."""
        self._again_at = now
        self._newest = 0
        self._former = FormerHolders()
        self._unanswered = Unanswered(config.max_unanswered_matches, 0, repeating=True)
        database.write(self._transaction(begin_repeat)).result()
        ((self._newest, self._unanswered.answered, repeat),) = database.read(
            "SELECT generation, answered, repeat FROM rendezvous_state"
        )
        self._unanswered.repeating = repeat is not None
        reports = database.read("SELECT sid, rid FROM unserved LIMIT ?", (config.max_unserved_reports,))
        self._with_report: set[tuple[bytes, bytes]] = {(sid, rid) for sid, rid in reports}
        self._kept = 0
        self.opening = self._left_over()
        """What a former life may not have got across: send it before anything else."""
        self._keys: dict[str, bytes] = {}
        """By which key each node speaks that signs what it asks; as long as its lease."""
        for name, boot, key in database.read("SELECT name, max(boot), key FROM nodes WHERE state < 2 GROUP BY name"):
            self._leases.renew(name, boot, now)
            if key is not None:
                self._keys[name] = key

    @classmethod
    def open(
        cls,
        path: Path,
        config: RendezvousConfig | None = None,
        *,
        now: float,
        verifier: SignatureVerifier | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Open or create the store. Raises `storage.StorageError`."""
        database = Database.open(path, MIGRATIONS)
        try:
            return cls(database, config or RendezvousConfig(), now, verifier, observer)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Finish what is under way. Notes which matches were answered, so that they are not said again."""
        with contextlib.suppress(StorageError):
            self._database.write(self._transaction(lambda session: session.state))
        self._database.close()

    def _left_over(self) -> RequestOutcome:
        rows = self._database.read("SELECT no, node, message FROM kept_events ORDER BY no")
        self._kept = len(rows)
        messages = [(node, decode(message)) for _, node, message in rows]
        events = tuple((n, m) for n, m in messages if isinstance(m, ScopePublished | ScopeUnpublished))
        return RequestOutcome(events, kept=tuple(no for no, _, _ in rows))

    def settled(self, outcome: RequestOutcome) -> None:
        """All that an outcome says to nodes has arrived, or was given up: it need not be kept any longer."""
        if outcome.kept:
            with self._lock:
                self._kept -= len(outcome.kept)
            numbers = [(no,) for no in outcome.kept]
            self._submit(
                lambda session: session.tx.execute_many("DELETE FROM kept_events WHERE no = ?", numbers), "settled"
            )

    # What arrives.

    def handle(
        self, node: str, boot: int, request: RendezvousRequest, now: float, now_ms: int
    ) -> Future[RequestOutcome]:
        """Do a request of a node in its `boot`-th life. `now_ms`, since the epoch, is for checking credentials.

        The future is done after the commit and never fails: what cannot be done is a `Reply` with a code.
        """
        self._now = max(self._now, now)
        entries, sender = self._proofs(node, request, now_ms)
        if not isinstance(request, Explain):
            if refusal := self._not_the_node(node, sender):
                return _done(self._reply_alone(node, request, Code.BAD_SIGNATURE, refusal))
            if node not in self._leases and self._leases.full:
                self._tell(BoundReached("max_nodes"))
                reason = f"max_nodes: {len(self._leases)} nodes are known"
                return _done(self._reply_alone(node, request, Code.LIMIT_REACHED, reason))
            self._leases.renew(node, boot, now)
            if sender.key is not None:
                self._keys[node] = sender.key
        refusals: tuple[str, ...] = ()
        former: tuple[str, ...] = ()
        if isinstance(request, Explain):
            with self._lock:
                refusals = self._refusals.about(request.sid, request.rid)
                former = self._former.of(request.sid, request.rid)
                if request.keeps:
                    self._former.note(request.sid, request.rid, node)
        elif isinstance(request, PublishItem):
            with self._lock:
                self._former.note(request.sid, request.rid, node)
        asked = Asked(node, boot, request, sender, entries, refusals, former)

        def failed(error: Exception) -> RequestOutcome:
            code = Code.LIMIT_REACHED if isinstance(error, StorageError) else Code.UNKNOWN_REQUEST
            return self._reply_alone(node, request, code, f"nothing was changed: {error}")

        def committed(outcome: RequestOutcome) -> None:
            for message in outcome:
                if isinstance(message, DeclarationsRefused):
                    with self._lock:
                        for entry in message.refused:
                            self._refusals.add(entry.sid, entry.rid, node, "Declare", Code(entry.code), entry.reason)
                elif isinstance(message, Reply):
                    self._note(node, request, Code(message.code), message.reason)

        return self._submit(lambda session: decide(session, asked), type(request).__name__, committed, failed)

    def handle_topology(self, message: MatchServed | TopologyStarted, now: float) -> Future[RequestOutcome]:
        """What the topology manager says."""
        self._now = max(self._now, now)
        if isinstance(message, TopologyStarted):
            return self._submit_surely(self._resync)
        item = message.sid, message.rid
        with self._lock:
            gone = self._unanswered.is_answered(item, message.generation, self._newest)
            if gone is False and not message.unserved and item not in self._with_report:
                return _done(RequestOutcome())
            if message.unserved:
                if len(self._with_report) < self._config.max_unserved_reports:
                    self._with_report.add(item)
            else:
                self._with_report.discard(item)
        return self._submit(lambda session: note_served(session, message), "MatchServed")

    # Time.

    def next_timer(self) -> float | None:
        """When `handle_timer` has something to do. Ask again after every outcome."""
        with self._lock:
            sweep_at = None if self._sweeping else self._sweep_at
            again_at = self._again_at if self._again else None
        times = [time for time in (sweep_at, again_at, self._leases.next_end()) if time is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> Future[RequestOutcome] | None:
        """End leases, or do one portion of background work; None when nothing is due.

        Send the outcome before the next call, so that a sweep over many items does not outrun the network.
        """
        self._now = max(self._now, now)
        if over := self._leases.ended(now):
            for name, _ in over:
                self._keys.pop(name, None)
                self._tell(LeaseEnded(name))
            return self._submit_surely(_EndLeases(tuple(over)))
        with self._lock:
            again = self._again.popleft() if self._again and self._again_at <= now else None
        if again is not None:
            return self._submit_surely(again)
        with self._lock:
            if self._sweeping or self._sweep_at is None or self._sweep_at > now:
                return None
            self._sweeping = True
            self._sweep_at = None
        repeating: list[bool] = []

        def work(session: RendezvousSession) -> None:
            sweep(session)
            repeating[:] = [session.state.repeat is not None]

        def committed(_: RequestOutcome) -> None:
            with self._lock:
                self._sweeping = False
                self._unanswered.repeating = repeating[0]

        def failed(_: Exception) -> RequestOutcome:
            with self._lock:
                self._sweeping = False
                self._sweep_at = self._now + RETRY_AFTER
            return RequestOutcome()

        return self._submit(work, "sweep", committed, failed)

    def statistics(self) -> Statistics:
        """Counts rows: costs time that grows with their number."""
        ((nodes, scopes, items, members, generation),) = self._database.read(
            "SELECT (SELECT count(DISTINCT name) FROM nodes), (SELECT count(*) - 1 FROM scopes WHERE present),"
            " (SELECT count(*) FROM items WHERE publishers > 0 OR subscribers > 0), (SELECT count(*) FROM members),"
            " (SELECT generation FROM rendezvous_state)"
        )
        with self._lock:
            return Statistics(nodes, scopes, items, members, generation, len(self._unanswered), dict(self._replies))

    # Inside.

    def _transaction(self, core: Callable[[RendezvousSession], object]) -> Callable[[Transaction], RequestOutcome]:
        answered = self._unanswered.answered

        def run(tx: Transaction) -> RequestOutcome:
            session = RendezvousSession(tx, self._config, answered)
            core(session)
            session.finish()
            return session.out.build()

        return run

    def _submit(
        self,
        core: Callable[[RendezvousSession], object],
        name: str,
        committed: Callable[[RequestOutcome], None] | None = None,
        failed: Callable[[Exception], RequestOutcome] | None = None,
    ) -> Future[RequestOutcome]:
        result: Future[RequestOutcome] = Future()

        def after(job: Future[RequestOutcome]) -> None:
            error = job.exception()
            if error is None:
                outcome = job.result()
                self._take_note(outcome)
                if committed is not None:
                    committed(outcome)
            else:
                outcome = give_up(error)
            result.set_result(outcome)

        def give_up(error: BaseException) -> RequestOutcome:
            reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._tell(WorkFailed(name, reason))
            return RequestOutcome() if failed is None else failed(reason)

        try:
            job = self._database.write(self._transaction(core))
        except StorageError as error:  # closed, or too much is waiting
            return _done(give_up(error))
        job.add_done_callback(after)
        return result

    def _submit_surely(self, core: Callable[[RendezvousSession], None]) -> Future[RequestOutcome]:
        def failed(_: Exception) -> RequestOutcome:
            with self._lock:
                self._again.append(core)
                self._again_at = self._now + RETRY_AFTER
            return RequestOutcome()

        def committed(_: RequestOutcome) -> None:
            if core == self._resync:
                with self._lock:
                    self._unanswered.clear()

        return self._submit(core, "TopologyStarted" if core == self._resync else "LeaseEnded", committed, failed)

    def _resync(self, session: RendezvousSession) -> None:
        begin_resync(session)

    def _take_note(self, outcome: RequestOutcome) -> None:
        """In the writer's thread, after the commit."""
        kept = True
        with self._lock:
            if outcome.background:
                self._sweep_at = self._now
            self._kept += len(outcome.kept)
            too_many = self._kept - self._config.max_kept_events if outcome.kept else 0
            for match in outcome.matches:
                self._former.add(match)
                self._newest = max(self._newest, match.generation)
                kept = self._unanswered.said((match.sid, match.rid), match.generation, _nobody(match)) and kept
        if not kept:
            self._tell(BoundReached("max_unanswered_matches"))
        if too_many > 0:
            self._let_go_of_events(too_many)
        for name in outcome.bounds:
            self._tell(BoundReached(name))
        if outcome.matches:
            self._tell(MatchesSaid(len(outcome.matches)))

    def _let_go_of_events(self, count: int) -> None:
        self._tell(BoundReached("max_kept_events"))
        with self._lock:
            self._kept -= count
        statement = "DELETE FROM kept_events WHERE no IN (SELECT no FROM kept_events ORDER BY no LIMIT ?)"
        self._submit(lambda session: session.tx.execute(statement, (count,)), "max_kept_events")

    def _reply_alone(self, node: str, request: RendezvousRequest, code: Code, reason: str) -> RequestOutcome:
        self._note(node, request, code, reason)
        out = OutcomeBuilder()
        out.reply(node, request.number, code, reason)
        return out.build()

    def _note(self, node: str, request: RendezvousRequest, code: Code, reason: str) -> None:
        self._tell(RequestHandled(node, type(request).__name__, code))
        with self._lock:
            self._replies[code.name] += 1
        if code is not Code.SUCCESS and not isinstance(request, Declare | KeepAlive):
            rid = getattr(request, "rid", WHOLE_SCOPE)
            with self._lock:
                self._refusals.add(request.sid, rid, node, type(request).__name__, code, reason)

    def _proofs(self, node: str, request: RendezvousRequest, now_ms: int) -> tuple[tuple[Proof, ...], Proof]:
        """Of the entries of a declaration, and of whoever asks."""
        if isinstance(request, Explain):
            return (), NO_PROOF
        entries = request.entries if isinstance(request, Declare) else ()
        # In the order in which they were signed.
        of_entries = tuple(self._proof(node, entry, entry.credential, now_ms) for entry in entries)
        return of_entries, self._proof(node, request, request.credential, now_ms)

    def _not_the_node(self, node: str, sender: Proof) -> str:
        """Why somebody may not speak for a node: each member can write another's name under a message."""
        key = self._keys.get(node)
        if key is None or sender.key == key:
            return ""
        return sender.refusal or f"{node} signs what it asks, and this is not signed with its key"

    def _proof(self, node: str, signed: Signable, credential: Credential | None, now_ms: int) -> Proof:
        """A credential that is there is checked, also where none is needed."""
        if credential is None:
            return NO_PROOF
        verdict = self._verifier.check_credential(signed, credential, node, now_ms)
        return Proof(verdict.signer) if verdict.refusal is None else Proof(refusal=verdict.refusal.value)

    def _tell(self, event: RendezvousEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _done(outcome: RequestOutcome) -> Future[RequestOutcome]:
    future: Future[RequestOutcome] = Future()
    future.set_result(outcome)
    return future


def _nobody(match: Match) -> bool:
    return not match.publishers and not match.subscribers
