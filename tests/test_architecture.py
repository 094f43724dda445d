"""Imports run downwards through the rooms that docs/architecture.md lists, so no circle of packages can come to be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"


def layers() -> dict[str, int]:
    """Room -> its line in the document, from the top; several may stand on one."""
    text = (ROOT / "docs/architecture.md").read_text()
    block = text[text.index("    warm ") :].split("\n\n")[0]
    lines = [line[4:] for line in block.splitlines() if line[4:5].strip()]
    return {room: number for number, line in enumerate(lines) for room in rooms_of(line)}


def rooms_of(line: str) -> list[str]:
    """The first word of a line, and others that are modules."""
    words = re.split(r"\s{3,}", line.strip())
    return [word for word in words if re.fullmatch(r"\w+", word)]


def modules() -> dict[str, Path]:
    paths = {}
    for path in (SOURCE / "pipelag").rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "pipelag"


def imports(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Modules of ours that a module imports, anywhere in it but under `if TYPE_CHECKING`; registries' strings too."""
    typing = {id(n) for block in ast.walk(tree) if guards_types(block) for n in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pipelag")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pipelag":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"(pipelag[\w.]*):\w+", node.value)
            if named:
                yield named[1]


def guards_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def upward(sources: dict[str, str]) -> list[str]:
    """Imports that do not run downwards, of module -> source text."""
    order, known, wrong = layers(), set(modules()), []
    for module, text in sources.items():
        room = room_of(module)
        for target in imports(ast.parse(text), known):
            other = room_of(target)
            if other != room and order[other] <= order[room]:
                wrong.append(f"{module} imports {target}: {other} lies above {room}")
    return wrong


def test_every_room_is_listed() -> None:
    assert {room_of(module) for module in modules()} == set(layers())


def test_imports_run_downwards() -> None:
    assert upward({module: path.read_text() for module, path in modules().items()}) == []


def test_an_upward_import_is_seen() -> None:
    lazy = "def f():\n    from pipelag.results.context import Context\n"
    by_name = 'HOME = "pipelag.commands.run:main"\n'
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pipelag.results.context import Context\n"
    wrong = upward({"pipelag.report.tables": lazy, "pipelag.stage.phase": by_name, "pipelag.report.frames": typed})
    assert [line.split(" imports ")[0] for line in wrong] == ["pipelag.report.tables", "pipelag.stage.phase"]
