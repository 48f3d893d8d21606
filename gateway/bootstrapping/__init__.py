"""Recursive subscription to topics of distant domains: zones, their managers, and those who ask them."""

from gateway.bootstrapping.config import BootstrappingConfig, Unmanaged
from gateway.bootstrapping.part import Bootstrapping
from gateway.bootstrapping.store import MIGRATIONS as OWN_TABLES
from push_hub.client import MIGRATIONS as SUBSCRIBER_TABLES

MIGRATIONS = [*OWN_TABLES, *SUBSCRIBER_TABLES]

__all__ = ["MIGRATIONS", "Bootstrapping", "BootstrappingConfig", "Unmanaged"]
