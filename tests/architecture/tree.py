"""The source tree as the rules about it see it: files, modules, and what each imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("services", "gateway", "tandem")
GENERATED = Path("tandem/v1")


@dataclass(frozen=True)
class Source:
    """One Python file; path is relative to the root."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The name it is imported by."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    def imports(self) -> Iterator[str]:
        """Every name it imports, wherever in the file; `from a import b` gives a.b, be b a module or not."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, f"{self.path}: a relative import"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """The files under some folders that people wrote, in a fixed order."""
    paths = sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    texts = {path: (ROOT / path).read_text() for path in paths if not path.is_relative_to(GENERATED)}
    return tuple(Source(path, text, ast.parse(text, str(path))) for path, text in texts.items())


def product() -> tuple[Source, ...]:
    """All of the product."""
    return sources(*PRODUCT)


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these packages, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
