"""A gateway's configuration: what is accepted, what is refused, and that every refusal names the key."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.bootstrapping import BootstrappingConfig
from gateway.cli.main import main
from gateway.config import ConfigError, check, load, sections_of
from gateway.config_example import EXAMPLE
from gateway.discovery.section import RegisterSection
from gateway.protocols.chat.protocol import CHAT
from gateway.protocols.listed import BUILT_IN
from gateway.protocols.rest.protocol import REST
from identifiers import HashName, Scheme
from psirp_stack.node.config import NodeFile

NODE = {"name": "gate-a", "links": [{"udp": "127.0.0.1:4001", "peer": "127.0.0.1:4002"}]}


def refusal(folder: Path, environment: dict[str, str] | None = None, **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check({"node": NODE, **sections}, folder, "x.toml", environment)
    return str(caught.value)


def test_the_printed_example_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "example"]) == 0
    file = tmp_path / "gateway.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == 0
    assert "can be used" in capsys.readouterr().out
    assert load(file, {}).data == tmp_path / "var/gateway"


def test_the_example_is_complete_and_shows_the_defaults() -> None:
    """Also with the lines that are commented out, every key of every section is there, and no other."""
    shown = tomllib.loads(EXAMPLE)
    everything = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and " = " in line else line for line in EXAMPLE.splitlines()
    )
    names = {line.split(" = ")[0].strip() for line in everything.splitlines() if " = " in line}

    def compare(struct: type[msgspec.Struct], given: dict[str, Any], default: object) -> None:
        for field in msgspec.structs.fields(struct):
            value = getattr(default, field.name, None)
            if field.name == "register":  # a section that is not there by default
                assert {each.name for each in msgspec.structs.fields(RegisterSection)} <= names
            elif isinstance(value, msgspec.Struct):
                compare(type(value), given.get(field.name, {}), value)
            elif field.name not in ("node", "links", "socket", "tls", "rules", "bridge"):  # sections, in comments
                assert field.name in names, field.name
                if field.name in given and field.name != "name" and value is not None:
                    expected = list(value) if isinstance(value, tuple) else value
                    assert given[field.name] == expected, field.name

    for section, kinds in sections_of(BUILT_IN).items():
        for kind in kinds:
            if kind is not None:
                compare(kind, shown.get(section, {}), kind())
    compare(NodeFile, shown["node"], NodeFile(name="gate-a"))


def test_an_empty_gateway_with_a_node_has_the_defaults_of_the_hub(tmp_path: Path) -> None:
    config = check({"node": NODE}, tmp_path)
    assert (config.hub.host, config.hub.port) == ("127.0.0.1", 8080)
    assert config.naming.scheme is Scheme.FQDN_PATH
    assert config.network.node is not None
    # What a publisher is told is on disk must be on disk at the node too.
    assert config.network.node.data == str(tmp_path / "var/gateway/node")


@pytest.mark.parametrize(
    ("section", "values", "key", "says"),
    [
        ("hub", {"listen": "localhost:80"}, "hub.listen", "IP address"),
        ("hub", {"listen": "127.0.0.1"}, "hub.listen", "ADDRESS:PORT"),
        ("hub", {"listen": 80}, "hub.listen", "expected `str`"),
        ("hub", {"colour": "red"}, "hub.colour", "no such key"),
        ("hub", {"public_url": "ftp://x/"}, "hub.public_url", "http"),
        ("hub", {"topics": ["nonsense"]}, "hub.topics", "nonsense"),
        ("hub", {"trusted_proxies": ["me"]}, "hub.trusted_proxies", "IP addresses"),
        ("hub", {"canary": {"interval": 0}}, "hub.canary.interval", "0.0"),
        ("naming", {"scheme": "other"}, "naming.scheme", "other"),
        ("naming", {"hash": "md5"}, "naming.hash", "md5"),
        ("limits", {"fetches": 0}, "limits.fetches", ">= 1"),
        ("limits", {"lease_min": 10**9}, "limits.lease_default", "minimum"),
        ("gateway", {"zones": ["news.example.com"]}, "gateway.zones[0]", "example.com"),
        ("gateway", {"zones": ["com"]}, "gateway.zones[0]", "public suffix"),
        ("gateway", {"domain": "not a domain"}, "gateway.domain", "no domain"),
        ("gateway", {"name": "a b"}, "gateway.name", "regex"),
        ("hub", {"hosts": {"news.example.com": "nowhere"}}, "hub.hosts", "nowhere"),
        ("hub", {"hosts": {"a b": "127.0.0.1"}}, "hub.hosts", "NAME"),
        ("bootstrapping", {"unmanaged": "perhaps"}, "bootstrapping.unmanaged", "perhaps"),
        ("bootstrapping", {"lease": 0}, "bootstrapping.lease", ">= 1"),
        ("bootstrapping", {"requester_keys": ["xyz"]}, "bootstrapping.requester_keys[", "regex"),
        ("bootstrapping", {"max_topics_per_requester": 10**6}, "bootstrapping.max_topics_per_requester", "<= 10000"),
        ("bootstrapping", {"upstream_confirm": 9.0}, "bootstrapping.upstream_confirm", "answer_timeout"),
        ("bootstrapping", {"zones": ["example.com"]}, "bootstrapping.zones", "no such key"),
        ("network", {"attach": "x.sock"}, "network.attach", "not both"),
        ("store", {"path": ""}, "store.path", "length"),
        ("node", {}, "node.name", "missing"),
        ("node", {"name": "a", "socket": "x"}, "node.socket", "leave this out"),
        ("node", {"name": "a", "nonsense": 1}, "node.nonsense", "no such key"),
        ("node", {"name": "a", "links": [{"udp": "127.0.0.1:1", "peer": "127.0.0.1:2", "mtu": 1}]}, "mtu", ">= 576"),
        ("node", {"name": "a", "keys": {"signing": "no.key"}}, "node.keys.signing", "not there"),
        ("nonsense", {}, "nonsense", "no such key"),
        ("discovery", {"nameservers": ["ns1"]}, "discovery.nameservers", "IP address"),
        ("discovery", {"register": {}}, "discovery.register.server", "missing"),
        ("web", {"listen": "nowhere"}, "web.listen", "ADDRESS:PORT"),
        ("web", {"listen": "127.0.0.1:0", "public_url": "chat.example"}, "web.public_url", "https://HOST"),
        ("web", {"listen": "127.0.0.1:0", "cors_origins": ["evil"]}, "web.cors_origins", "https://HOST"),
        ("web", {"listen": "127.0.0.1:0", "names": ["a b"]}, "web.names", "no host name"),
        ("web", {"listen": "127.0.0.1:0", "trusted_proxies": ["proxy"]}, "web.trusted_proxies", "IP addresses"),
        ("web", {"listen": "127.0.0.1:0", "publish_below": ["news/"]}, "web.publish_below", "news/"),
        ("web", {"listen": "127.0.0.1:0", "publish_tokens_file": "no"}, "web.publish_tokens_file", "cannot be read"),
        ("web", {"readers": 0}, "web.readers", ">= 1"),
        ("chat", {"partners": 0}, "chat.partners", ">= 1"),
    ],
)
def test_a_refusal_names_the_key(tmp_path: Path, section: str, values: object, key: str, says: str) -> None:
    text = refusal(tmp_path, **{section: values})
    assert text.startswith("x.toml: ")
    assert key in text.split(": ")[1]
    assert says in text


def test_a_registration_is_checked_whole(tmp_path: Path) -> None:
    key = tmp_path / "update.key"
    key.write_text('key "k" { algorithm hmac-sha256; secret "c2l4dGVlbiBieXRlcyBvciBtb3JlIG9mIGEgc2VjcmV0"; };')
    register = {"server": "127.0.0.1", "key_file": "update.key", "target": "gw1.example.com"}

    def refused(**changed: object) -> str:
        return refusal(tmp_path, discovery={"register": {**register, "domain": "example.com", **changed}})

    key.chmod(0o644)
    assert "discovery.register.key_file" in refused()
    key.chmod(0o600)
    assert "discovery.register.key_file" in refused(key_file="absent")
    assert "discovery.register: " in refused(target="127.0.0.1")
    assert "does not hold" in refused(zone="example.org")
    assert "discovery.register.weight" in refused(weight=70_000)
    assert "discovery.register.domain" in refusal(tmp_path, discovery={"register": register})
    config = check({"node": NODE, "gateway": {"domain": "example.com"}, "discovery": {"register": register}}, tmp_path)
    assert config.discovery.register is not None
    assert config.discovery.register.domain == "example.com"
    assert config.discovery.register.registrar(8080).record.port == 8080


def test_zones_and_their_settings_reach_the_part_that_needs_them(tmp_path: Path) -> None:
    sections = {
        "gateway": {"zones": ["Example.com", "example.co.uk"]},
        "bootstrapping": {"unmanaged": "accept", "lease": 600, "poll_hubless": True, "requester_keys": ["ab" * 32]},
        "hub": {"hosts": {"News.example.com": "127.0.0.1"}},
    }
    config = check({"node": NODE, **sections}, tmp_path)
    zones = config.bootstrapping
    assert zones.zones == ("example.com", "example.co.uk")
    assert (zones.unmanaged, zones.lease, zones.poll, zones.requester_keys) == ("accept", 600, True, ("ab" * 32,))
    assert config.hub.hosts == (("news.example.com", "127.0.0.1"),)
    assert check({"node": NODE}, tmp_path).bootstrapping == BootstrappingConfig()


def test_neither_a_node_nor_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"network\.attach: expected either"):
        check({}, tmp_path)
    assert check({"network": {"attach": "n.sock"}}, tmp_path).network.attach == tmp_path / "n.sock"


def test_the_environment_replaces_keys_and_its_mistakes_are_named(tmp_path: Path) -> None:
    environment = {
        "PSPH_HUB__LISTEN": "0.0.0.0:81",
        "PSPH_NAMING__HASH": "sha256",
        "PSPH_HUB__ALLOW_PRIVATE": "true",
        "PSPH_NODE__DOMAIN__SEED": "other",
        "PSPH_GATEWAY__ZONES": '["example.com"]',
        "PSPH_SOCKET": "something else's",
    }
    config = check({"node": dict(NODE)}, tmp_path, environment=environment)
    assert (config.hub.host, config.hub.port) == ("0.0.0.0", 81)
    assert config.hub.allow_private
    assert config.naming.hash_name is HashName.SHA256
    assert config.zones == ("example.com",)
    assert config.network.node is not None
    assert config.network.node.domain.seed == "other"
    text = refusal(tmp_path, {"PSPH_HUB__LISTEN": "nowhere"})
    assert "hub.listen" in text
    assert "set by PSPH_HUB__LISTEN" in text
    assert "hub.colour" in refusal(tmp_path, {"PSPH_HUB__COLOUR": "red"})
    assert "no section" in refusal(tmp_path, {"PSPH_HUB__LISTEN__X": "1"}, hub={"listen": "127.0.0.1:1"})


def test_secrets_come_from_files_that_others_cannot_read(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n\ntwo\n")
    tokens.chmod(0o644)
    text = refusal(tmp_path, hub={"publisher_tokens_file": "tokens"})
    assert "hub.publisher_tokens_file" in text
    assert "0600" in text
    tokens.chmod(0o600)
    config = check({"node": NODE, "hub": {"publisher_tokens_file": "tokens"}}, tmp_path)
    assert config.hub.server.publisher_tokens == ("one", "two")
    assert "cannot be read" in refusal(tmp_path, hub={"operator_token_file": "absent"})
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    secret.chmod(0o640)
    node = {**NODE, "domain": {"secret_file": "secret"}}
    assert "node.domain.secret_file" in refusal(tmp_path, node=node)
    secret.chmod(0o600)
    config = check({"node": node}, tmp_path)
    assert config.network.node is not None
    assert config.network.node.domain.secret_file == str(secret)


def test_what_is_not_toml_or_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "absent.toml")]) == 2
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")
    assert main(["gateway", "-c", str(broken)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "cannot be read" in errors[0]
    assert "not TOML" in errors[1]


def test_the_port_for_people_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    assert check({"node": NODE, "gateway": {"domain": "example.com"}}, tmp_path).web is None
    section = {"listen": "127.0.0.1:0", "names": ["Chat.Example.com"], "readers": 7}
    document = {"node": NODE, "gateway": {"domain": "Example.com"}, "web": section, "chat": {"partners": 3}}
    config = check(document, tmp_path)
    web, rest, chat = config.web, REST.of(config.protocols), CHAT.of(config.protocols)
    assert web is not None
    assert rest is not None
    assert chat is not None
    assert (web.host, web.port, web.names) == ("127.0.0.1", 0, frozenset({"chat.example.com"}))
    assert rest.max_streams == 7
    assert not rest.anyone_may_publish
    assert (chat.domain, chat.max_partners) == ("example.com", 3)
    for other in ({"gateway": {}}, {"chat": {"enabled": False}}):
        config = check({**document, **other}, tmp_path)
        assert config.web is not None
        assert CHAT.of(config.protocols) is None
