"""Who may publish and who may subscribe, by topic and by zone."""

from gateway.access.guard import AccessGuard, ArrivalRefused
from gateway.access.rules import AccessRequest, AccessRules, Act, Effect, Rule

__all__ = ["AccessGuard", "AccessRequest", "AccessRules", "Act", "ArrivalRefused", "Effect", "Rule"]
