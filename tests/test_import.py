"""`import floc` is light, and a missing package is named where it is needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_pulls_in_no_optional_package() -> None:
    code = """
import sys, floc
floc.methods.list_methods(), floc.Captured, floc.plan
print(sorted({m.split('.')[0] for m in sys.modules}), "torch._dynamo" in sys.modules)
"""
    loaded = run(code).stdout
    assert "'torch'" in loaded
    assert loaded.endswith("False\n"), "the compiler of torch takes more than a second to load"
    for name in (
        "numba",
        "triton",
        "transformers",
        "av",
        "sklearn",
        "typer",
        "rich",
        "matplotlib",
        "cv2",
        "lmms_eval",
        "lance",
        "pyarrow",
    ):
        assert f"'{name}'" not in loaded, name


WITHOUT_NUMBA = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find(name, *rest)
sys.modules["numba"] = None
import numpy as np, floc
tokens = np.random.default_rng(0).standard_normal((40, 6, 8)).astype(np.float32)
"""


def test_without_numba_auto_takes_torch() -> None:
    done = run(WITHOUT_NUMBA + "print(len(floc.compress(tokens, ratio=1/8)), len(floc.select(np.eye(4), 2).picks))")
    assert done.stdout.split() == ["30", "2"], done.stderr


def test_without_numba_the_cpu_backend_says_what_to_install() -> None:
    done = run(WITHOUT_NUMBA + "floc.compress(tokens, ratio=1/8, backend='cpu')")
    assert (
        "ImportError: backend 'cpu' needs numba: pip install 'floc-video[cpu]', or pass backend='torch'" in done.stderr
    )


def test_without_lance_a_store_says_what_to_install() -> None:
    for package in ("lance", "pyarrow"):
        done = run(f"import sys; sys.modules[{package!r}] = None\nimport floc\nfloc.Store('x')")
        assert "ImportError: a store needs Lance: pip install 'floc-video[store]'" in done.stderr


WITHOUT_FCNTL = """
import importlib, pkgutil, sys
import numpy as np, torch, transformers, lance, av, numba, rich, sklearn  # may use what is missing below
sys.modules["fcntl"] = sys.modules["resource"] = None  # as on Windows
import floc
needs_a_host = {"floc.integrations.lmms_eval.models", "floc.__main__"}
needs_a_host |= {f"floc.integrations.vllm.{name}" for name in ("hooks", "compact", "stored_hooks")}
for module in pkgutil.walk_packages(floc.__path__, "floc."):
    if module.name not in needs_a_host:
        importlib.import_module(module.name)
print(len(floc.compress(np.random.default_rng(0).standard_normal((40, 6, 8)), ratio=1/8)))
"""


def test_modules_import_without_fcntl_and_resource() -> None:
    for package in ("transformers", "lance", "av", "numba", "rich", "sklearn"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'floc-video[dev]'")
    done = run(WITHOUT_FCNTL)
    assert (done.returncode, done.stdout.split()) == (0, ["30"]), done.stderr


def test_documented_modules_are_attributes() -> None:
    """What docs/reference/api.md names as `floc.files.read_kept` works after `import floc` alone."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text()
    names = re.findall(r"^::: floc\.([\w.]+)$", page, re.MULTILINE)
    assert len(names) > 20
    code = "import operator, floc\n" + "".join(f"operator.attrgetter({name!r})(floc)\n" for name in names)
    done = run(code)
    assert done.returncode == 0, done.stderr
