"""A small linter for Dockerfiles: the rules that this project keeps to, each with a name."""

import json
import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def stages(text: str) -> list[Stage]:
    """Instructions by stage, with continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found: list[Stage] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word.upper() == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base.strip(), name.strip()))
        elif found:
            found[-1].steps.append((word.upper(), rest.strip()))
    return found


def complaints(text: str) -> list[str]:
    """Names of the rules that are broken."""
    found: list[str] = []
    known: list[str] = []
    all_stages = stages(text)
    bases = {stage.base for stage in all_stages}
    for stage in all_stages:
        if stage.base not in known and not re.search(r":[^:/@]*\d[^:/@]*@sha256:[0-9a-f]{64}$", stage.base):
            found.append("pinned-base")
        final = stage.name not in bases and not stage.name.startswith("build")
        found += _stage(stage, known, final=final)
        known.append(stage.name)
    return found


def _stage(stage: Stage, known: list[str], *, final: bool) -> list[str]:
    found = []
    for word, rest in stage.steps:
        if word == "ADD":
            found.append("copy-not-add")
        if word == "RUN" and re.search(r"\bsudo\b", rest):
            found.append("no-sudo")
        if word == "RUN" and re.search(r"pip\S* .*install|-m pip .*install", rest) and "--no-cache-dir" not in rest:
            found.append("pip-no-cache")
        if word == "RUN" and re.search(r"pip .*install", rest) and "-c constraints.txt" not in rest:
            found.append("pip-pinned")
        if word == "RUN" and final and re.search(r"apt-get|pip .*install|\b(gcc|cc|make|build-essential)\b", rest):
            found.append("no-building-in-the-final-stage")
        if word in ("ENV", "ARG") and re.search(r"(?i)(token|secret|password)", rest):
            found.append("no-secret-in-the-image")
        if word in ("CMD", "ENTRYPOINT") and not _is_list(rest):
            found.append("exec-form")
        if word == "WORKDIR" and not rest.startswith("/"):
            found.append("absolute-workdir")
        source = re.search(r"--from=(\S+)", rest) if word == "COPY" else None
        if source is not None and source[1] not in known:
            found.append("known-stage")
    users = [rest for word, rest in stage.steps if word == "USER"]
    if final and (not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1])):
        found.append("non-root-by-number")
    if final and not any(word == "ENTRYPOINT" for word, _ in stage.steps):
        found.append("entrypoint")
    return found


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False
