"""From an accepted publication to every callback: durable, fair, in order."""

from push_hub.delivery.config import DeliveryConfig, QueueLimits, Retention
from push_hub.delivery.errors import ContentRefusedError, DeliveryError, DeliveryOverloadedError
from push_hub.delivery.fanout import Delivery
from push_hub.delivery.history import MIGRATIONS as HISTORY_TABLES
from push_hub.delivery.history import HistoryEntry
from push_hub.delivery.log import MIGRATIONS as LOG_TABLES
from push_hub.delivery.log import OwedDelivery, StoredDeadLetter
from push_hub.delivery.pausing import MIGRATIONS as PAUSE_TABLES
from push_hub.delivery.pausing import TooManyPausedError
from push_hub.delivery.retention import MIGRATIONS as RETENTION_TABLES

MIGRATIONS = [*HISTORY_TABLES, *RETENTION_TABLES, *PAUSE_TABLES, *LOG_TABLES]

__all__ = [
    "MIGRATIONS",
    "ContentRefusedError",
    "Delivery",
    "DeliveryConfig",
    "DeliveryError",
    "DeliveryOverloadedError",
    "HistoryEntry",
    "OwedDelivery",
    "QueueLimits",
    "Retention",
    "StoredDeadLetter",
    "TooManyPausedError",
]
