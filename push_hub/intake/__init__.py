"""From a ping to a publication: fetch the topic, find out what is new, hand it on."""

from push_hub.intake.config import IntakeConfig
from push_hub.intake.intake import Intake
from push_hub.intake.ports import Fetch, FetchError, FetchResponse, PublicationSink
from push_hub.intake.store import MIGRATIONS

__all__ = ["MIGRATIONS", "Fetch", "FetchError", "FetchResponse", "Intake", "IntakeConfig", "PublicationSink"]
