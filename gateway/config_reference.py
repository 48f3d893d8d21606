"""The keys of a configuration as Markdown tables, read from the commented example so that both say the same."""

import re
from dataclasses import dataclass

from gateway.config_example import EXAMPLE

_SECTION = re.compile(r"^(?P<off># )?\[+(?P<name>[a-z_.]+)\]+(?:\s+# (?P<what>.*))?$")
_KEY = re.compile(r"^(?P<off># )?(?P<key>[a-z_]+) = (?P<value>.*?)(?:\s{2,}# (?P<what>.*))?$")


@dataclass(frozen=True, slots=True)
class Key:
    section: str
    name: str
    value: str
    shown: bool
    """Whether the value is the default; otherwise it is an example of one."""
    what: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


def keys(example: str = EXAMPLE) -> tuple[dict[str, str], list[Key]]:
    """What each section is about, and every key."""
    sections: dict[str, str] = {}
    found: dict[str, Key] = {}
    section = ""
    for line in example.splitlines():
        if header := _SECTION.match(line):
            section = header["name"]
            sections.setdefault(section, header["what"] or "")
        elif section and (key := _KEY.match(line)):
            one = Key(section, key["key"], key["value"].strip(), key["off"] is None, key["what"] or "")
            found.setdefault(one.path, one)
    return sections, list(found.values())


def reference(example: str = EXAMPLE) -> str:
    sections, all_keys = keys(example)
    lines: list[str] = []
    for section, what in sections.items():
        lines += [f"### [{section}]", ""]
        if what:
            lines += [f"{what[:1].upper()}{what[1:]}.", ""]
        lines += ["| key | default | |", "|---|---|---|"]
        for key in all_keys:
            if key.section == section:
                value = f"`{key.value}`" if key.shown else f"none; e.g. `{key.value}`"
                lines.append(f"| `{key.name}` | {value} | {key.what.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)
