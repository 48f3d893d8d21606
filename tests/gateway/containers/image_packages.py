"""What pip installs in the gateway's image, told from what is installed here."""

import sys
import tomllib
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.gateway.containers.compose_files import ROOT


def installed_with(names: set[str]) -> set[str]:
    """Distributions with all that they require, without extras."""
    found: set[str] = set()
    waiting = {canonicalize_name(name) for name in names}
    while waiting:
        name = waiting.pop()
        found.add(name)
        try:
            required = [Requirement(text) for text in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        needed = {
            canonicalize_name(one.name) for one in required if one.marker is None or one.marker.evaluate({"extra": ""})
        }
        waiting |= needed - found
    return found


@cache
def installed_in_the_gateway() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = canonicalize_name(project["name"])
    return frozenset(installed_with({Requirement(text).name for text in project["dependencies"]}) | {own})


@cache
def absent_from_the_gateway() -> frozenset[str]:
    """Modules that can be imported here, and cannot in the image."""
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    left_out = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {*packaged["packages"], "tests"}
    there = installed_in_the_gateway()
    return frozenset(left_out) | frozenset(
        module
        for module, owners in metadata.packages_distributions().items()
        if module.isidentifier()
        and module not in sys.stdlib_module_names
        and not there & {canonicalize_name(owner) for owner in owners}
        and not (ROOT / module).is_dir()
    )
