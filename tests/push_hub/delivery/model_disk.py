"""What the delivery queue's tests use instead of a disk."""

from push_hub.delivery.batch import FAR, Batch


class ModelDisk:
    """What would be on disk: batches applied whole, in order, as the log applies them."""

    def __init__(self) -> None:
        self.fanouts: dict[int, int] = {}
        self.rows: dict[tuple[int, int], float] = {}
        self.dead: set[tuple[int, int]] = set()

    def apply(self, batch: Batch, now: float) -> None:
        for row in batch.rows:
            self.rows[row.subscription, row.publication] = row.next_try_at
        for key in batch.settled:
            self.rows.pop(key, None)
        for subscription in {key[0] for key in batch.settled}:
            first = min((key for key in self.rows if key[0] == subscription), default=None)
            if first is not None and self.rows[first] >= FAR:
                self.rows[first] = now
        for subscription, publication in batch.behind:
            earlier = any(s == subscription and p < publication for s, p in self.rows)
            self.rows.setdefault((subscription, publication), FAR if earlier else now)
        self.dead.update((letter.subscription.id, letter.publication) for letter in batch.dead)
        self.fanouts.update(batch.positions)
        for publication in batch.finished:
            self.fanouts.pop(publication, None)
