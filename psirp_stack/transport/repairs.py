"""What is sent to one receiver alone, because it asked for it: receivers take turns."""

from collections import deque
from collections.abc import Iterable

from psirp_stack.forwarding_model import TABLES
from psirp_stack.transport.frames import DATA_OVERHEAD, leads_somewhere
from psirp_stack.transport.item_frames import ItemFrames
from psirp_stack.transport.peer import Answer, Peer, PeerSend
from psirp_stack.transport.sender_context import SenderContext


class Repairs:
    """The receivers of one item for which something waits, and its frames one by one."""

    def __init__(self, context: SenderContext, frames: ItemFrames) -> None:
        self._context = context
        self._frames = frames
        self._busy: deque[Peer] = deque()
        self.paced_until: float | None = None
        """When the next may be sent, if something waits for its time."""

    def __bool__(self) -> bool:
        return bool(self._busy)

    def queue(self, peer: Peer, number: int, metadata: bool, segments: Iterable[int], copies: int = 1) -> None:
        """What was asked for before and still waits is not sent twice for that."""
        job = peer.jobs.get(number)
        if job is None:
            job = peer.jobs[number] = PeerSend(number, 0, {})
        if metadata:
            job.metadata = max(job.metadata, copies)
        for segment in segments:
            job.segments[segment] = copies
        self._mark_busy(peer)

    def tell_retained(self, peer: Peer, answer: Answer) -> None:
        if peer.answer is None or answer.start is not None:
            peer.answer = answer
        self._mark_busy(peer)

    def keep_only(self, peers: Iterable[Peer]) -> None:
        """Nothing is sent to anybody else any more."""
        self._busy = deque(peer for peer in peers if peer.queued)

    def next_frame(self, now: float) -> bytes | None:
        busy = self._busy
        self.paced_until = None
        for _ in range(len(busy)):
            peer = busy[0]
            pace = (peer.alone or peer.stream).congestion
            if peer.answer is None and not pace.may_send(now):
                pace.was_limited(now)
                self.paced_until = min(pace.next_at, self.paced_until or pace.next_at)
                busy.rotate(-1)
                continue
            frame = self._frame_for(peer, now)
            if frame is not None:
                pace.sent(len(frame), now)
                busy.rotate(-1)
                return frame
            peer.queued = False
            busy.popleft()
        return None

    def _mark_busy(self, peer: Peer) -> None:
        if not peer.queued:
            peer.queued = True
            self._busy.append(peer)

    def _frame_for(self, peer: Peer, now: float) -> bytes | None:
        counters, frames = self._context.counters, self._frames
        if peer.answer is not None:
            answer, peer.answer = peer.answer, None
            fid = self.way_to(peer, 0)
            table = (fid[-1] + peer.unanswered) % TABLES
            return frames.retained(peer.name, peer.token, answer, fid, table, now)
        while peer.jobs:
            number, job = next(iter(peer.jobs.items()))
            out = frames.positions.outgoing(number)
            if out is None:
                del peer.jobs[number]
                continue
            if job.metadata:
                job.metadata -= 1
                _sent_again(peer, number, 0)
                counters.repaired_announcements += 1
                whole = 0 in job.segments and frames.fits_beside(out)
                if whole:
                    del job.segments[0]
                    _sent_again(peer, number, 1)
                fid = self.way_to(peer, out.segment_size if whole else 0)
                table = (fid[-1] + peer.unanswered) % TABLES
                return frames.announcement(out, fid, table, now, alone=True, with_body=whole)
            segment = next(iter(job.segments), None)
            if segment is None or segment >= out.segments:
                del peer.jobs[number]
                continue
            job.segments[segment] -= 1
            if not job.segments[segment]:
                del job.segments[segment]
            counters.repaired_segments += 1
            _sent_again(peer, number, segment + 1)
            size = min(out.segment_size, len(out.body) - segment * out.segment_size)
            return frames.segment(out, segment, self.way_to(peer, DATA_OVERHEAD + size), now)
        return None

    def way_to(self, peer: Peer, size: int) -> bytes:
        """A filter to one receiver. Unanswered attempts take turns with those there are."""
        ways = [peer.way] if peer.way is not None else []
        if not ways or peer.unanswered:
            route = self._context.route_to(peer.name)
            if route is not None and route[1] >= size and leads_somewhere(route[0]):
                ways.append(route[0])
            ways.append(peer.stream.fid)
        return ways[peer.unanswered % len(ways)]


def _sent_again(peer: Peer, number: int, place: int) -> None:
    for stream in (peer.stream, peer.alone):
        if stream is not None:
            stream.sent_again(number, place)
