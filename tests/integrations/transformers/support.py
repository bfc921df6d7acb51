"""Write the table of supported models from JUnit reports of the tests: `make support`.

    python -m tests.integrations.transformers.support docs/reference/models.md 5.17.0=old.xml 5.22.2=new.xml

A feature works for a family if all its tests of that family passed. If all were skipped, the bare model of that release
cannot do it, or it does not apply to the family; the table has the reasons of the skips.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from tests.integrations.transformers.processors import PARTS
from tests.integrations.transformers.video_types import NOTES, REASONS, list_video_types

GENERATION = "test_generation_equals_masking"
# features, and the start of the names of their tests
FEATURES = {
    "equal to hand-cut inputs": (
        "test_ratio_one_is_bit_identical",
        "test_equals_inputs_cut_by_hand",
        "test_generates_as_inputs_cut_by_hand",
        "test_cache_holds_kept_tokens_and_text",
        "test_model_is_restored",
    ),
    "equal to masking": ("test_equals_the_bare_model_with_dropped_tokens_masked",),
    "further turns": ("test_second_turn_continues_from_the_cache", "test_second_turn_with_another_video"),
    "static cache": (
        f"{GENERATION}[static cache",
        "test_generation_with_static_cache_and_eager_attention",
        "test_static_cache_generates_the_same",
    ),
    "beams": (f"{GENERATION}[beams", "test_beam_search_equals_inputs_cut_by_hand"),
    "sampling": (f"{GENERATION}[sampling",),
    "prompt lookup": ("test_prompt_lookup_generates_the_same",),
    "images beside": ("test_images_are_not_compressed",),
    "compact positions": ("test_compact_positions_have_no_gaps",),
    "capture and replay": (
        "test_file_with_all_tokens_equals_the_model_alone",
        "test_fewer_tokens_of_a_file_equal_attach",
        "test_replay_equals_attach",
    ),
    "floc ask": ("test_answer_equals_capture_and_replay",),
}
MARKED = re.compile(r"(<!-- support -->\n).*?(<!-- /support -->)", re.DOTALL)


def read_outcomes(report: Path) -> tuple[dict[tuple[str, str], set[str]], dict[tuple[str, str], str]]:
    """Return the outcomes of the tests of each family and feature (passed, skipped, failed), and why they skipped."""
    outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)
    reasons: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        parameters = re.split(r"[\[\]-]", name)[1:]
        state = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
        skipped = case.find("skipped")
        if skipped is not None:
            state = "skipped"
        for feature, prefixes in FEATURES.items():
            if name.startswith(prefixes):
                for kind in parameters:
                    outcomes[kind, feature].add(state)
                    if skipped is not None:
                        reasons[kind, feature] = skipped.get("message", "")
    return outcomes, reasons


def format_table(reports: dict[str, Path]) -> str:
    """Format the table: the releases in which each feature works, by model type, and the reasons where it does not."""
    by_release = {release: read_outcomes(path) for release, path in reports.items()}
    lines = [f"| model type | {' | '.join(FEATURES)} | note |", f"|---|{'---|' * (len(FEATURES) + 1)}"]
    numbers: dict[str, int] = {}  # of reasons
    for kind in sorted({kind.removesuffix("_thinker") for kind in list_video_types()} | PARTS.keys()):
        note = REASONS.get(kind) or NOTES.get(kind, "")
        cells = []
        for feature in FEATURES:
            works = [
                release
                for release, (outcomes, _) in by_release.items()
                if "passed" in outcomes.get((kind, feature), ()) and "failed" not in outcomes[kind, feature]
            ]
            cell = "yes" if len(works) == len(by_release) else ", ".join(works) or "-"
            given = {reasons.get((kind, feature), "") for rel, (_, reasons) in by_release.items() if rel not in works}
            for reason in sorted(given):
                if reason and reason != note and not reason.startswith("not in transformers"):
                    cell += f" ({numbers.setdefault(reason, len(numbers) + 1)})"
            cells.append(cell)
        lines.append(f"| {kind} | {' | '.join(cells)} | {note} |")
    tested = " and ".join(reports)
    note = (
        f"All model types of transformers {list(reports)[-1]} that take videos, from the library itself. Run with "
        f"transformers {tested} on tiny models with random weights and the real processor classes. yes: works in both; "
        "a release: works in that one only, because the type or the feature does not exist or fails in the bare model "
        "of the other; -: not tested, does not apply, or the note or a number says why. Layers that do not attend to "
        "all tokens cannot equal masking."
    )
    listed = [f"{number}. {reason}" for reason, number in numbers.items()]
    return "\n".join([*lines, "", note, *(["", *listed] if listed else [])])


def main(page: Path, reports: dict[str, Path]) -> None:
    """Write the table between the markers of a page."""
    text = page.read_text()
    if not MARKED.search(text):
        raise ValueError(f"{page}: has no <!-- support --> ... <!-- /support --> markers")
    page.write_text(MARKED.sub(lambda match: f"{match[1]}\n{format_table(reports)}\n\n{match[2]}", text))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), {release: Path(path) for release, path in (argument.split("=") for argument in sys.argv[2:])}
    )
