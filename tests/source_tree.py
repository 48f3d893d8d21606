"""The project's own modules as the guards read them: what each imports, names and says of itself."""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("storage", "identifiers", "psirp_stack", "serving", "exchange", "push_hub", "perf", "gateway", "trials")


@dataclass(frozen=True)
class Import:
    """One import: `names` is empty for `import module`."""

    module: str
    names: frozenset[str] = field(default_factory=frozenset)
    for_types: bool = False
    """Only for the type checker: nothing is loaded."""


@dataclass(frozen=True, eq=False)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def imports(self) -> list[Import]:
        """At any depth of its code."""
        return list(_imports(self.tree, self.path, for_types=False))


def _imports(node: ast.AST, path: Path, *, for_types: bool) -> list[Import]:
    found = []
    for child in ast.iter_child_nodes(node):
        inside = for_types
        if isinstance(child, ast.Import):
            found += [Import(alias.name, for_types=for_types) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}: imports are absolute here"
            found.append(Import(child.module or "", frozenset(alias.name for alias in child.names), for_types))
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            inside = True
        found += _imports(child, path, for_types=inside)
    return found


def read_module(path: Path, root: Path = ROOT) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


def read_modules(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> dict[str, Module]:
    modules = (read_module(path, root) for package in packages for path in sorted((root / package).rglob("*.py")))
    return {module.name: module for module in modules}


def modules_at(place: str, modules: dict[str, Module], root: Path = ROOT) -> list[Module]:
    """Those of a file or a folder."""
    target = root / place
    return [module for module in modules.values() if module.path == target or target in module.path.parents]
