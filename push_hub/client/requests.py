"""What a subscriber or publisher sends: discovery, subscription requests, pings. Over the guarded fetch port."""

from dataclasses import dataclass
from urllib.parse import urlencode, urljoin

from push_hub.discovery import discover
from push_hub.intake.config import IntakeConfig
from push_hub.intake.ports import Fetch, reason_of
from push_hub.intake.source import FetchFailedError, Validators, fetch_document

TIMEOUT = 20.0
MAX_ANSWER = 64 * 1024
MAX_HUB_REDIRECTS = 3
FORM = "application/x-www-form-urlencoded"


class ClientError(Exception):
    """It did not work; the text says why. `status` is what the hub answered, if it did."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class NoHubError(ClientError):
    """A page that can be read and names no hub."""


@dataclass(frozen=True, slots=True)
class Discovered:
    topic: str
    hubs: tuple[str, ...]


async def discover_topic(fetch: Fetch, url: str) -> Discovered:
    """S1, S2: the topic is the self link, or where the redirects ended when there is none."""
    try:
        fetched = await fetch_document(fetch, url, Validators(), 0, IntakeConfig(user_agent="psph-client"))
    except FetchFailedError as error:
        raise ClientError(f"{url} could not be read: {error.reason}") from error
    links = discover(fetched.headers, fetched.headers.get("Content-Type") or "", fetched.body or b"", fetched.url)
    if not links.hubs:
        raise NoHubError(f"{url} names no hub: neither a Link header nor a link in the document")
    return Discovered(links.self_url or fetched.url, links.hubs)


async def send_request(
    fetch: Fetch,
    hub: str,
    mode: str,
    topic: str,
    callback: str,
    secret: bytes | None,
    lease: int | None,
    verify_token: str | None = None,
    *,
    secret_over_http: bool = False,
) -> int:
    """Subscribe or unsubscribe; 307 and 308 of the hub are followed with the same request (S14).

    With a `verify_token` the request is one of 0.3. Without, it says nothing of 0.3: a hub that knows both texts
    would take it for an old client and send less.
    """
    fields = [("hub.mode", mode), ("hub.topic", topic), ("hub.callback", callback)]
    if mode == "subscribe":
        if secret is not None and (secret_over_http or hub.lower().startswith("https:")):
            fields.append(("hub.secret", secret.decode("ascii")))
        if lease is not None:
            fields.append(("hub.lease_seconds", str(lease)))
    if verify_token is not None:
        fields += [("hub.verify", "async"), ("hub.verify_token", verify_token)]
    return await _post(fetch, hub, fields)


async def publish(fetch: Fetch, hub: str, topics: list[str]) -> int:
    """Tell a hub that topics changed; both parameter names, because hubs differ in which they read."""
    fields = [("hub.mode", "publish")]
    for topic in topics:
        fields += [("hub.url", topic), ("hub.topic", topic)]
    return await _post(fetch, hub, fields)


async def publish_everywhere(fetch: Fetch, url: str) -> dict[str, str | None]:
    """P4: tell every hub that a page names. For each hub, None when it took the ping, otherwise why not."""
    found = await discover_topic(fetch, url)
    outcomes: dict[str, str | None] = {}
    for hub in found.hubs:
        try:
            await publish(fetch, hub, [found.topic])
            outcomes[hub] = None
        except ClientError as error:
            outcomes[hub] = str(error)
    return outcomes


async def _post(fetch: Fetch, hub: str, fields: list[tuple[str, str]]) -> int:
    url, secure = hub, hub.lower().startswith("https:")
    for _ in range(MAX_HUB_REDIRECTS + 1):
        try:
            response = await fetch.request(
                "POST",
                url,
                headers={"Content-Type": FORM},
                body=urlencode(fields).encode("ascii"),
                timeout=TIMEOUT,
                max_bytes=MAX_ANSWER,
            )
        except Exception as error:
            raise ClientError(f"the hub {url} could not be reached: {reason_of(error)}") from error
        if 200 <= response.status < 300:
            return response.status
        location = response.headers.get("Location")
        if response.status not in (307, 308) or not location:
            text = "".join(c if c.isprintable() else " " for c in response.body[:200].decode("utf-8", "replace"))
            raise ClientError(f"the hub {url} answered {response.status}: {text.strip()}", response.status)
        try:
            url = urljoin(url, location)
        except ValueError:
            raise ClientError(f"the hub {hub} redirects to something that is no URL") from None
        if not url.startswith("https:" if secure else ("http:", "https:")):
            raise ClientError(f"the hub {hub} redirects to something less safe: {url[:200]}")
    raise ClientError(f"the hub {hub} redirects more than {MAX_HUB_REDIRECTS} times")
