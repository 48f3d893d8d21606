"""A gateway's configuration: what is accepted, what is refused, and that every refusal names the key."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli.main import main
from gateway.config import ConfigError, GatewayFile, check, load
from gateway.config_example import EXAMPLE
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
            if isinstance(value, msgspec.Struct):
                compare(type(value), given.get(field.name, {}), value)
            elif field.name not in ("node", "links", "socket", "tls", "rules"):  # sections, in comments
                assert field.name in names, field.name
                if field.name in given and field.name != "name" and value is not None:
                    expected = list(value) if isinstance(value, tuple) else value
                    assert given[field.name] == expected, field.name

    compare(GatewayFile, shown, GatewayFile())
    compare(NodeFile, shown["node"], NodeFile(name="gate-a"))


def test_an_empty_gateway_with_a_node_has_the_defaults_of_the_hub(tmp_path: Path) -> None:
    config = check({"node": NODE}, tmp_path)
    assert (config.hub.host, config.hub.port) == ("127.0.0.1", 8080)
    assert config.naming.scheme is Scheme.FQDN_PATH
    assert config.node is not None
    # What a publisher is told is on disk must be on disk at the node too.
    assert config.node.data == str(tmp_path / "var/gateway/node")


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
        ("network", {"attach": "x.sock"}, "network.attach", "not both"),
        ("store", {"path": ""}, "store.path", "length"),
        ("node", {}, "node.name", "missing"),
        ("node", {"name": "a", "socket": "x"}, "node.socket", "leave this out"),
        ("node", {"name": "a", "nonsense": 1}, "node.nonsense", "no such key"),
        ("node", {"name": "a", "links": [{"udp": "127.0.0.1:1", "peer": "127.0.0.1:2", "mtu": 1}]}, "mtu", ">= 576"),
        ("node", {"name": "a", "keys": {"signing": "no.key"}}, "node.keys.signing", "not there"),
        ("nonsense", {}, "nonsense", "no such key"),
    ],
)
def test_a_refusal_names_the_key(tmp_path: Path, section: str, values: object, key: str, says: str) -> None:
    text = refusal(tmp_path, **{section: values})
    assert text.startswith("x.toml: ")
    assert key in text.split(": ")[1]
    assert says in text


def test_neither_a_node_nor_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"network\.attach: expected either"):
        check({}, tmp_path)
    assert check({"network": {"attach": "n.sock"}}, tmp_path).attach == tmp_path / "n.sock"


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
    assert config.node is not None
    assert config.node.domain.seed == "other"
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
    assert config.node is not None
    assert config.node.domain.secret_file == str(secret)


def test_what_is_not_toml_or_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "absent.toml")]) == 2
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")
    assert main(["gateway", "-c", str(broken)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "cannot be read" in errors[0]
    assert "not TOML" in errors[1]
