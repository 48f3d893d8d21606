"""The intake's bounds, in one object."""

from dataclasses import dataclass, field

from serving.limits import Rate
from storage.backoff import BackOff


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    max_waiting_topics: int = 100_000
    """Topics that may wait for their fetch; above it pings are refused with a time to come back."""
    busy_retry_after: float = 30.0
    max_fetches: int = 32
    max_fetches_per_prefix: int = 4
    """Of the network that an origin is in, whatever names it has: a /24 of IPv4, a /64 of IPv6."""
    max_retries_per_prefix: int = 20
    """Failed fetches of one network that are kept for another try; above it the next ping is waited for."""
    max_body_bytes: int = 8 * 1024 * 1024
    fetch_timeout: float = 20.0
    self_timeout: float = 5.0
    """Of a look at the address on another origin that a document says is its own."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Beginnings of topics, and of addresses that their documents may name as their own without a look."""
    max_redirects: int = 5
    permanent_redirect_trust: float = 86_400.0
    """How long a permanent redirect is taken without asking the old address again."""
    max_attempts: int = 5
    """Fetches for one ping before the intake waits for the next."""
    retry_base: float = 5.0
    retry_cap: float = 600.0
    max_entries_kept: int = 5_000
    """Entries remembered for one topic, beyond those its document holds now."""
    max_unwanted_pings: int = 10_000
    """Pings of topics that nobody wants: a row each, so that whoever comes gets the current state. The oldest go."""
    max_unwanted_bytes: int = 4 * 1024 * 1024
    max_unwanted_pings_per_client: int = 1_000
    """The same of the clients of one network."""
    unwanted_ping_age: float = 86_400.0
    forget_after: float = 3_600.0
    """Seconds after its last fetch until what is kept of a topic may go, when nobody wants it and its log has gone."""
    max_offers: int = 64
    """Fat pings looked at or waiting for it; above it they are refused with a time to come back."""
    max_threads: int = 2
    """Threads for hashing, unpacking and comparing."""
    sweep_page: int = 1_000
    """Rows of waiting pings taken up at once, at the start and on each round after it."""
    sweep_every: float = 60.0
    max_parses: int = 2
    """Parser processes, started when first needed: so many documents are taken apart at the same time."""
    parse_max_bytes: int = 4 * 1024 * 1024
    """Feeds above this size are not taken apart, only passed on whole."""
    parse_timeout: float = 10.0
    """A parser that takes longer (on the clock or of processor time) is ended, and its document passed on whole."""
    parse_share: Rate = field(default_factory=lambda: Rate(0.25, 20.0))
    """Seconds of parsers that the documents of one network get each second, and save up; beyond, they go on whole."""
    parser_memory: int = 512 * 1024 * 1024
    parser_documents: int = 1_000
    """A parser process is replaced after so many, in case it leaks."""
    user_agent: str = "psph-hub"
    poll: bool = False
    """Look by ourselves at topics that have subscribers and whose publishers do not ping."""
    poll_min: float = 300.0
    poll_max: float = 86_400.0
    poll_batch: int = 500
    poll_tick: float = 5.0

    @property
    def retries(self) -> BackOff:
        return BackOff(min(self.retry_base, self.retry_cap), longest=self.retry_cap)
