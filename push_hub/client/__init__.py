"""The other side of the hub: discover, subscribe, receive, renew, publish."""

from push_hub.client.callbacks import ReceivedDelivery, callback_app
from push_hub.client.publisher import feed_links, html_links, link_header
from push_hub.client.requests import (
    ClientError,
    Discovered,
    NoHubError,
    discover_topic,
    publish,
    publish_everywhere,
    send_request,
)
from push_hub.client.subscriber import Subscriber, SubscriberConfig
from push_hub.client.subscription_store import MIGRATIONS, ClientSubscriptionStore
from push_hub.client.subscriptions import ClientSubscription, SubscriptionState

__all__ = [
    "MIGRATIONS",
    "ClientError",
    "ClientSubscription",
    "ClientSubscriptionStore",
    "Discovered",
    "NoHubError",
    "ReceivedDelivery",
    "Subscriber",
    "SubscriberConfig",
    "SubscriptionState",
    "callback_app",
    "discover_topic",
    "feed_links",
    "html_links",
    "link_header",
    "publish",
    "publish_everywhere",
    "send_request",
]
