"""docs/chat.md says what is: the document it prints, its limits, its keys and its paths."""

import re
from pathlib import Path

import msgspec

from gateway.protocols.chat import messages as chat_messages
from gateway.protocols.chat import routes as chat_routes
from gateway.protocols.chat.adapter import ChatConfig
from gateway.protocols.chat.messages import ChatMessage, read, write_message
from gateway.protocols.chat.protocol import ChatSection

TEXT = (Path(__file__).parents[3] / "docs" / "chat.md").read_text()


def test_the_printed_document_is_the_one_that_is_written_and_read() -> None:
    found = re.search(r"```xml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    message = ChatMessage("m1", "alice@a.example", "Hello <Bob>!", 1767323045.0, "bob@b.example")
    assert write_message(message).decode() == found[1]
    assert read(found[1].encode()) == message


def test_every_key_is_explained_with_its_default() -> None:
    for field in msgspec.structs.fields(ChatSection):
        [row] = [line for line in TEXT.splitlines() if line.startswith("| `") and f"`{field.name}`" in line]
        default = row.rstrip(" |").rpartition("|")[2]
        expected = str(field.default).lower() if isinstance(field.default, bool) else f"{int(field.default)}"
        assert expected in [one.strip() for one in default.split(",")], field.name


def test_limits_are_as_written() -> None:
    assert f"up to {chat_messages.MAX_TEXT} characters" in TEXT
    assert f"up to {chat_messages.MAX_ID} letters" in TEXT
    assert f"(at most {chat_messages.MAX_RECEIVED})" in TEXT
    assert f"longer than {chat_messages.MAX_DOCUMENT >> 10} KiB" in TEXT
    assert f"deeper than {chat_messages.MAX_DEPTH}" in TEXT
    assert f"| {chat_routes.PAGE} messages before" in TEXT
    assert ChatConfig("x.example").max_attempts == 3
    assert "until it was sent three times" in TEXT


def test_every_path_of_the_page_is_there() -> None:
    source = Path(chat_routes.__file__).read_text()
    paths = re.findall(r'router\.add_(\w+)\("/chat/(\w+)"', source)
    assert len(paths) == 9
    for method, path in paths:
        assert re.search(rf"^\| {method.upper()} \| `{path}", TEXT, re.MULTILINE), (method, path)
