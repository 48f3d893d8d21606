"""Who may publish and who may subscribe, by topic and by zone."""

from gateway.access.guard import AccessGuard, PublicationRefused
from gateway.access.rules import Access, Act, Effect, Request, Rule

__all__ = ["Access", "AccessGuard", "Act", "Effect", "PublicationRefused", "Request", "Rule"]
