"""Pages of the documentation taken apart: blocks, the commands in them, and the commands that stand in the text.

What a fenced block is for stands behind its language:

    toml file=NAME              a file of the page, written before anything runs
    sh                          commands, given to a shell as one, as when a reader pastes them; they must succeed.
                                What goes on says so itself (`psph ... --wait-ready`), what has `&` ends by itself
    sh fails=N                  the same, and the last ends with code N
    sh background=TEXT          a command that goes on; the next block waits until it has printed TEXT
    sh root                     only where root runs the tests, in a network namespace of the page's own
    sh needs=PROGRAM            only where this program is installed
    sh covered=PATH::TEST       not run here: the named test takes the commands from the page and runs them
    text output                 what the block before prints; numbers, ids and times may differ
    text output=exact           the same, and nothing may differ
"""

import ast
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BETWEEN = re.compile(r"&&|\|\||[|;&({]|\b(?:do|then|until|while|if)\b")
"""What may stand between two commands of a line."""
SHELL = "sh"
PROGRAMS = (
    "psph", "make", "docker", "systemctl", "journalctl", "curl", "wireshark", "tshark", "pip", "python", "python3",
    "pytest", "pre-commit", "ruff", "mypy", "git", "ip", "sudo", "openssl", "sqlite3", "tsig-keygen", "nsupdate", "dig",
    "apt", "apt-get", "named", "nginx", "caddy", "haproxy", "sh", "bash", "ssh", "wget", "podman",
)  # fmt: skip
"""A line or a span of text that begins with one of these is a command for the reader."""
SERVER_LEFT = re.compile(r"^psph (?:hub|feed|gateway|node|demo|pub|mqtt|net up)\b.*[^&\s]\s*&\s*(?:#.*)?$")
ASSIGNMENT = re.compile(r"^[A-Z_]+=\S*$")
TAKES = "commands_for"
"""The function by which a covering test takes its commands from a page."""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    body: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def shell(self) -> bool:
        return self.language == SHELL


def blocks(page: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        language, *words = shlex.split(match["info"]) or [""]
        options = {name: value for name, _, value in (word.partition("=") for word in words)}
        found.append(Block(language, match["body"], options))
    return found


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def lines(script: str) -> list[str]:
    """The lines of a script, continued ones joined."""
    return [line for line in script.replace("\\\n", " ").splitlines() if line.strip()]


@dataclass(frozen=True, slots=True)
class Command:
    """What a command is, without its values: the words that lead it, and its options."""

    words: tuple[str, ...]
    options: frozenset[str]

    def is_part_of(self, other: "Command") -> bool:
        return other.words[: len(self.words)] == self.words and self.options <= other.options


def command(text: str) -> Command | None:
    """None for what is no command of a program that we know."""
    text = text.replace(".venv/bin/", "")
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    while words and ASSIGNMENT.match(words[0]):
        words.pop(0)
    if not words or words[0] not in PROGRAMS:
        return None
    leading = [words[0]]
    for word in words[1:]:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        leading.append(word)
    options = [word for word in words if word.startswith("-") and len(word) > 1]
    return Command(tuple(leading), frozenset(options))


def commands(script: str) -> list[Command]:
    """All commands in a script: also behind pipes, in loops and in substitutions."""
    parts = [
        part for line in lines(script) for part in re.split(r"&&|\|\||[|;&({]|\b(?:do|then|until|while|if)\b", line)
    ]
    return [found for part in parts if (found := command(part.strip().rstrip(")}"))) is not None]


def shown_commands() -> list[Command]:
    """Every command of every block of commands."""
    return [found for page in PAGES for block in blocks(page) if block.shell for found in commands(block.body)]


def told_commands(page: Path) -> list[str]:
    """What stands in the text and is a command: a program we know, and at least one more word."""
    spans = [" ".join(span.split()) for paragraph in prose(page).split("\n\n") for span in SPAN.findall(paragraph)]
    return [span for span in spans if " " in span and command(span) is not None]


def commands_for(test: str, page: str) -> list[list[str]]:
    """For a test that stands for blocks of a page: their commands, as words. There is at least one."""
    named = [block for block in blocks(ROOT / page) if block.options.get("covered") == test]
    found = [shlex.split(line, comments=True) for block in named for line in lines(block.body)]
    assert found, f"{page} has no command that {test} stands for"
    return found


def covered_by(block: Block, page: Path) -> str | None:
    """Which test stands for a block, when one does: it exists, and takes the commands of this page."""
    name = block.options.get("covered")
    if name is None:
        return None
    path, _, test = name.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == test
    ]
    assert functions, f"{name} is no test"
    taken = [
        [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        for call in ast.walk(functions[0])
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == TAKES
    ]
    own = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    assert [name, own] in taken, f"{name} does not take its commands from {own}"
    return name


def pages_with_commands() -> list[Path]:
    return [page for page in PAGES if any(block.shell for block in blocks(page))]


def faults(page: Path) -> list[str]:
    """Where a command could hide that nobody runs."""
    found = []
    for line in prose(page).splitlines():
        if line.startswith(("    ", "\t")):
            found.append(f"an indented block; say with a fence what it is: {line.strip()}")
        if "```" in line or line.lstrip().startswith(("~~~", "<pre", "<code")):
            found.append(f"a block that is not fenced by ``` at the beginning of a line: {line.strip()}")
    for block in blocks(page):
        if not block.language:
            found.append(f"a block without a language: {block.body}")
        if block.shell and "covered" not in block.options:
            found += [
                "psph report: only one Java runs at a time, so a test in tests/perf/spark has to take it from the page"
                for one in commands(block.body)
                if one.words[:2] == ("psph", "report")
            ]
        if block.shell:
            found += [
                f"a server with &: what follows does not wait for it. Write --wait-ready: {line.strip()}"
                for line in lines(block.body)
                if SERVER_LEFT.match(line)
            ]
        if not block.shell:
            hidden = [line for line in block.body.splitlines() if command(line.strip().lstrip("$ ")) is not None]
            found += [f"a command in a block of {block.language or 'nothing'}: {line.strip()}" for line in hidden]
    return found
