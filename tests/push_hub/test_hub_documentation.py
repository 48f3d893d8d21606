"""docs/hub.md says what is so: every bound with its default, every option, every path."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest
from aiohttp import web

from gateway.cli import cmd_hub
from push_hub.bounds import SubscriptionBounds
from push_hub.canary import CanaryConfig
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.health import HealthConfig
from push_hub.hub import HubConfig
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.verification import CheckSchedule
from push_hub.server import ServerConfig
from push_hub.sse import HubStreamConfig
from push_hub.verifier import IntentVerifierConfig
from serving.limits import Rate
from tests.push_hub.world import World

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"
CLASSES = (
    HubConfig,
    ServerConfig,
    IntentVerifierConfig,
    SubscriptionBounds,
    LeasePolicy,
    CheckSchedule,
    HubStreamConfig,
    FeedProxyConfig,
    DiagnosticsConfig,
    CanaryConfig,
    HealthConfig,
)
NOT_A_BOUND = {"HubConfig.port"}


def default(field: "dataclasses.Field[object]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def bounds() -> dict[str, str]:
    found: dict[str, str] = {}
    for cls in CLASSES:
        for field in dataclasses.fields(cls):
            value, name = default(field), f"{cls.__name__}.{field.name}"
            if isinstance(value, Rate):
                found[name] = f"{value.per_second:,g}/s, {value.burst:,g} at once"
            elif isinstance(value, int | float) and not isinstance(value, bool) and name not in NOT_A_BOUND:
                found[name] = f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    return found


def test_the_table_holds_every_bound_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == bounds()


def test_every_option_is_explained() -> None:
    parser = argparse.ArgumentParser()
    cmd_hub.configure(parser)
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    text = PAGE.read_text(encoding="utf-8")
    assert {option for option in options - {"--help"} if f"`{option}" not in text} == set()


async def test_every_path_is_named(world: World) -> None:
    assert world.hub._parts is not None
    app = world.hub._parts.app
    assert isinstance(app, web.Application)
    text = PAGE.read_text(encoding="utf-8")
    for resource in app.router.resources():
        path = resource.canonical.replace("{number}", "N").replace("/.well-known/host-meta.json", "/host-meta.json")
        assert path in text, path


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")))
def test_links_lead_somewhere(link: str) -> None:
    assert (PAGE.parent / link).exists()
