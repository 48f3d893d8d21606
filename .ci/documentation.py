"""What mkdocs does not know of our pages: those outside `docs/`, what stands behind the language of a block, and links
that lead into the source."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "examples/README.md": "examples.md"} | {
    name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
"""Pages of the repository, and where they are in the site."""
REFERENCE = {
    "WebSub": ("push_hub.client", "push_hub.hub", "push_hub.ports", "push_hub.model"),
    "PSIRP": ("psirp_stack.node.api", "psirp_stack.node.attachment", "psirp_stack.emulation.network"),
    "names": ("identifiers.naming", "identifiers.topic", "identifiers.namespaces", "identifiers.identifier"),
    "a protocol of one's own": (
        "gateway.protocols.descriptor", "gateway.control", "gateway.model", "gateway.sections", "exchange.model",
    ),
    "storage and HTTP": ("storage.database", "serving.outbound.client", "serving.outbound.addresses"),
}  # fmt: skip
"""What examples and applications call."""
_FENCE = re.compile(r"^```(\w+)[^\n]*$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = ["# Reference\n\nMade of the docstrings. [Examples](examples.md) show most of it at work."]
    for title, modules in REFERENCE.items():
        pages += [f"## {title[0].upper()}{title[1:]}", *(f"::: {module}" for module in modules)]
    files.append(File.generated(config, "reference.md", content="\n\n".join(pages)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    source = next((name for name, target in OUTSIDE.items() if target == here), f"docs/{here}")
    return _LINK.sub(lambda found: _linked(found, source, here), _FENCE.sub(r"```\1", markdown))


def _linked(found: re.Match[str], source: str, here: str) -> str:
    """Links are written for the repository; here pages of it are at other places, and its source is nowhere."""
    picture, text, target = found.groups()
    if "://" in target or target.startswith("#"):
        return found[0]
    path, mark, anchor = target.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / there).exists():
        return found[0]  # for mkdocs to complain of
    if there in OUTSIDE:
        placed = OUTSIDE[there]
    elif there.startswith("docs/") and (ROOT / there).is_file():
        placed = there.removeprefix("docs/")
    elif there == "docs":
        placed = "index.md"
    else:
        return text if text.startswith("`") else f"{text} (`{there}`)"
    return f"{picture}[{text}]({posixpath.relpath(placed, posixpath.dirname(here) or '.')}{mark}{anchor})"
