"""The walls of the house: imports run one way, and nothing inside leans on another framework."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sdjax", "experiments", "configs")
# From the top down: a part may import what stands below it, and itself.
FLOORS = [
    {"configs"},
    {"experiments"},
    {"study"},
    {"train"},
    {"decode"},
    {"drafters", "verify"},
    {"trees", "targets", "mesh"},
    {"core"},
]
FLOOR = {part: -height for height, floor in enumerate(FLOORS) for part in floor}
NEVER = {"torch", "tensorflow", "keras", "transformers"}


def files(*packages):
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def modules(path):
    """Every module that the file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(name):
    """The part of the house that a dotted name lies in; None for what is not ours, and for `sdjax` itself."""
    first, *rest = name.split(".")
    return first if first in ("experiments", "configs") else rest[0] if first == "sdjax" and rest and rest[0] in FLOOR else None


def own_part(path):
    return part(".".join(path.relative_to(ROOT).with_suffix("").parts))


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in files(*PACKAGES) if own_part(path)], ids=name)
def test_imports_run_one_way(path):
    """experiments → study → train → decode → drafters, verify → trees, targets, mesh → core."""
    own = own_part(path)
    for module in modules(path):
        other = part(module)
        if other is not None and other != own:
            assert FLOOR[other] < FLOOR[own], f"{name(path)} ({own}) imports {module} ({other})"


@pytest.mark.parametrize("path", files("sdjax", "experiments"), ids=name)
def test_drafters_are_named_by_configs_alone(path):
    """A new family is one file and one config; families may build on shared parts, and a benchmark is its own config."""
    if own_part(path) == "drafters" or path.name.startswith("bench_"):
        return
    shared = ("sdjax.drafters.base", "sdjax.drafters.losses", "sdjax.drafters.head", "sdjax.drafters.published.registry")
    named = [m for m in modules(path) if m.startswith("sdjax.drafters.") and not m.startswith(shared)]
    assert not named, f"{name(path)} imports {named}"


@pytest.mark.parametrize("path", files("sdjax"), ids=name)
def test_no_other_framework(path):
    foreign = NEVER & {module.split(".")[0] for module in modules(path)}
    assert not foreign, f"{name(path)} imports {sorted(foreign)}"


def test_core_stands_alone():
    inner = {module for path in files("sdjax/core") for module in modules(path) if module.startswith("sdjax.")}
    assert all(module.startswith("sdjax.core.") for module in inner)


def test_every_part_has_a_floor():
    parts = {path.name for path in (ROOT / "sdjax").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert parts <= FLOOR.keys(), f"{sorted(parts - FLOOR.keys())} have no place in the order of imports"
