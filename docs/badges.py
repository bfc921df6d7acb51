"""Write the badges of the README from the report of a test run: `make badges`.

python -m docs.badges .venv/newest.xml 5.17.0 5.22.2
"""

from __future__ import annotations

import platform
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
GREEN, RED, BLUE = "#2e8b57", "#c0392b", "#34699a"


def count_tests(report: Path) -> tuple[int, int]:
    """Return the numbers of passed and failed tests in a JUnit report."""
    suite = next(ElementTree.parse(report).iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return total - skipped - failed, failed


def render(label: str, value: str, colour: str) -> str:
    """Render a badge as SVG.

    >>> "<svg" in render("tests", "10 passed", GREEN)
    True
    """
    left, right = 7 * len(label) + 12, 7 * len(value) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {value}"><rect width="{left}" height="20" fill="#555"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" y="14">{value}</text></g></svg>\n'
    )


def main(report: Path, oldest: str, newest: str) -> None:
    """Write the badges."""
    passed, failed = count_tests(report)
    value = f"{passed:,} passed" + (f", {failed} failed" if failed else "")
    badges = {
        "badge-tests.svg": render("tests", value, RED if failed else GREEN),
        "badge-python.svg": render("python", ".".join(platform.python_version_tuple()[:2]), BLUE),
        "badge-transformers.svg": render("transformers", f"{oldest} to {newest}", BLUE),
    }
    for name, text in badges.items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
