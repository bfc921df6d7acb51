"""Helpers of the benchmark tests."""

import pytest

from benchmarks import run

# the part of every results file that `show_environment` reads
ENVIRONMENT = {
    "device": {"cpu": "a processor", "cores": 2},
    "versions": {"torch": "2.0"},
    "commit": None,
    "date": "2026-01-01T00:00:00+00:00",
}
RATIO = {"ratio": 2.0, "ratio_p20": 1.5, "ratio_p80": 3.0}


def parse_rows(text):
    """Return the cells of a Markdown table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="session")
def require_clustering_and_plots():
    for package in ("sklearn", "kmedoids", "matplotlib"):
        pytest.importorskip(package, reason="all methods and plots need pip install 'floc-video[cluster,report]'")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that run whole tables as slow; `make bench-small` runs all tables, too."""
    for item in items:
        if {"run_small", "profiled"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def run_small(tmp_path):
    """Run a table with small sizes; return its results."""

    def run_table(name, echo=lambda _: None):
        return run.run(name, small=True, results=tmp_path, echo=echo)

    return run_table
