import subprocess
import sys

import pytest

from benchmarks import registry
from benchmarks.processes import child_environment


def test_every_module_of_tables_is_a_table():
    names = set(registry.load_tables())
    assert {"answer", "capture", "profile", "scenes", "second-pass", "select", "stream", "time", "video"} <= names


def test_rejects_unknown_table():
    with pytest.raises(ValueError, match="unknown table"):
        registry.get("nothing")


@pytest.mark.parametrize("name", ["time", "profile", "spread", "blocks", "metric", "needle"])
def test_figures_of_the_paper_have_a_plot(name):
    assert registry.get(name).plots


def test_view_names_are_unique():
    names = [name for table in registry.load_tables().values() for name in table.views]
    assert len(names) == len(set(names))


def test_tables_are_listed_without_optional_packages():
    missing = ("numba", "triton", "transformers", "av", "PIL", "sklearn", "kmedoids", "matplotlib", "vllm")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing})); "
        "from benchmarks import registry; print(*registry.load_tables())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == list(registry.load_tables())
