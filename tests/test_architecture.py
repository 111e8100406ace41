"""The picture in docs/architecture.md, checked on the syntax tree: one direction, no solver behind a certificate."""

from __future__ import annotations

import ast
from pathlib import Path

import cloudpickle
import pytest

import attsvm

ROOT = Path(attsvm.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each room may use the rooms of the lines above it, and those of its own line.
ORDER = [
    ["errors", "_lanes", "_static"],
    ["data"],
    ["datasets", "selection", "prediction", "optimizers", "steepest"],
    ["problem", "attention"],
    ["solution"],
    ["verify"],
    ["solvers"],
    ["trajectory"],
    ["training", "two_scale"],
    ["theory", "paths", "compare", "decompose", "plots"],
    ["sweep", "store"],
    ["transformer", "report"],
    ["experiments"],
    ["cli", "_tables"],
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path, *, lazy: bool) -> set[str]:
    """The rooms of attsvm a file imports; `lazy` also counts imports inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    inside = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    names = []
    for node in ast.walk(tree):
        if id(node) in typing_only or (not lazy and id(node) in inside):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "attsvm":
            deep = node.module.split(".")[1:]
            names += deep[:1] or [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path.name} has a relative import; the house writes them out")
        elif isinstance(node, ast.Import):
            names += [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("attsvm.")]
    return {name for name in names if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()}


def test_every_room_has_a_place():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= LEVEL.keys(), f"give these rooms a place in ORDER: {sorted(rooms - LEVEL.keys())}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_upstream_knows_nothing_of_downstream(path):
    room = room_of(path)
    if room == "__init__":
        return
    downstream = {name for name in imports(path, lazy=True) & LEVEL.keys() if LEVEL[name] > LEVEL.get(room, 99)}
    assert not downstream, f"{room} imports {sorted(downstream)}, which come after it"


def test_verify_reaches_no_solver():
    """Nor does anything it imports, to any depth."""
    seen, todo = set(), ["verify"]
    while todo:
        room = todo.pop()
        if room in seen:
            continue
        seen.add(room)
        files = [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").is_file() else sorted((ROOT / room).rglob("*.py"))
        todo += [name for path in files for name in imports(path, lazy=True)]
    assert not seen & {"solvers", "training", "experiments", "cli"}, sorted(seen)
    assert "scipy.optimize" not in (ROOT / "verify.py").read_text(encoding="utf-8")


def test_nobody_imports_the_rooms_that_know_everybody():
    for path in FILES:
        for room in ("experiments", "transformer", "cli"):
            if room_of(path) not in (room, "cli", "__init__"):
                assert room not in imports(path, lazy=True), f"{path.name} imports {room}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_importing_sets_no_global_flag(path):
    """Precision and platform flags of JAX belong inside functions."""
    if room_of(path) == "cli":
        return
    text = path.read_text(encoding="utf-8")
    assert "jax.config.update" not in text
    assert "JAX_ENABLE_X64" not in text


def test_functions_that_use_the_package_travel_between_processes():
    """joblib pickles what a script or notebook defines by value, with the modules it mentions by name."""
    assert cloudpickle.loads(cloudpickle.dumps(attsvm)) is attsvm
