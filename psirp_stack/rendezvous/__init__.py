"""The rendezvous: knows scopes and items, who publishes and who subscribes, and says so when they meet.

    rendezvous = Rendezvous.open(path, config, now)
    outcome = await asyncio.wrap_future(rendezvous.handle(node, boot, request, now, now_ms))

What is in an `RequestOutcome` may be sent: the state it speaks of is on disk.
"""

from psirp_stack.rendezvous.config import RendezvousConfig
from psirp_stack.rendezvous.declarations import DeclaredRole, declaration_hash, declarations_digest
from psirp_stack.rendezvous.outcome import RequestOutcome
from psirp_stack.rendezvous.service import Rendezvous

__all__ = [
    "DeclaredRole",
    "Rendezvous",
    "RendezvousConfig",
    "RequestOutcome",
    "declaration_hash",
    "declarations_digest",
]
