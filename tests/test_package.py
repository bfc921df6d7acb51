"""Build the package, install it into a clean environment and use it there: `make test-package`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment; return its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = dist.glob("*.whl")
    done = run(programs / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert done.returncode == 0, done.stderr
    return programs


def test_metadata_is_valid(dist: Path) -> None:
    done = run(sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name.split("-")[0] for path in dist.iterdir()) == ["floc_video", "floc_video"]


def test_wheel_holds_the_package_only(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"floc", "floc_video"}
    assert any(name.endswith(".html") for name in names)
    assert any(name.endswith("paper.json") for name in names)


def test_installed_package_works(clean: Path, tmp_path: Path) -> None:
    done = run(clean / "floc", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()[0].isdigit()
    code = "import numpy, floc; numpy.save('tokens.npy', numpy.random.rand(40, 4, 5, 16)); print(floc.__version__)"
    assert run(clean / "python", "-c", code, cwd=tmp_path).stdout == done.stdout
    done = run(clean / "floc", "compress", "tokens.npy", "--ratio", "1/8", "-o", "out/kept.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "100 of 800" in done.stderr
    assert (tmp_path / "out" / "kept.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("compress", "tokens.npy", "--ratio", "1/8", "--backend", "cpu"), "cpu"),
        (("compress", "talk.mp4", "--ratio", "1/8", "--encoder", "pixels"), "video"),
        (("compress", "tokens.npy", "--ratio", "1/8", "--method", "kmeans"), "cluster"),
        (("store", "list", "archive"), "store"),
    ],
)
def test_missing_extra_is_named(clean: Path, tmp_path: Path, arguments: tuple[str, ...], extra: str) -> None:
    run(clean / "python", "-c", "import numpy; numpy.save('tokens.npy', numpy.random.rand(40, 4, 5, 16))", cwd=tmp_path)
    (tmp_path / "talk.mp4").write_bytes(b"0" * 99)
    done = run(clean / "floc", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert f"pip install 'floc-video[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_eval_plans_without_lmms_eval_or_a_clone(clean: Path, tmp_path: Path) -> None:
    done = run(clean / "floc", "eval", "--paper", "table1", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "qwen2.5-vl-7b" in done.stdout + done.stderr
