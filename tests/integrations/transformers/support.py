"""Write the table of supported models from JUnit reports of the tests: `make support`.

    python -m tests.integrations.transformers.support docs/reference/models.md 5.17.0=old.xml 5.22.2=new.xml

A feature works for a family if all its tests of that family passed. If all were skipped, the bare model of that release
cannot do it, or it does not apply to the family.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

GENERATION = "test_generation_equals_masking"
# features, and the start of the names of their tests
FEATURES = {
    "equal to short inputs and to masking": (
        "test_ratio_one_is_bit_identical",
        "test_equals_inputs_cut_by_hand",
        "test_equals_the_bare_model_with_dropped_tokens_masked",
        "test_cache_holds_kept_tokens_and_text",
        "test_model_is_restored",
    ),
    "greedy": (f"{GENERATION}[greedy",),
    "beams": (f"{GENERATION}[beams", f"{GENERATION}[several beams"),
    "sampling": (f"{GENERATION}[sampling",),
    "no cache": (f"{GENERATION}[no cache",),
    "static cache": (f"{GENERATION}[static cache", "test_generation_with_static_cache_and_eager_attention"),
    "prompt lookup": (f"{GENERATION}[prompt lookup",),
    "further turns": ("test_second_turn_continues_from_the_cache", "test_second_turn_with_another_video"),
    "images beside": ("test_images_are_not_compressed",),
    "compact positions": ("test_compact_positions_have_no_gaps",),
    "merging methods": ("test_merged_features_replace_embeddings",),
    "capture and replay": (
        "test_replay_equals_attach",
        "test_another_question_about_the_same_video",
        "test_several_videos_in_a_prompt",
        "test_smaller_budget_from_the_same_file",
    ),
    "floc ask": ("test_answer_equals_capture_and_replay",),
}
MARKED = re.compile(r"(<!-- support -->\n).*?(<!-- /support -->)", re.DOTALL)


def read_outcomes(report: Path) -> dict[tuple[str, str], set[str]]:
    """Return the outcomes of the tests of each family and feature: passed, skipped, failed."""
    outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        parameters = re.split(r"[\[\]-]", name)[1:]
        state = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
        if case.find("skipped") is not None:
            state = "skipped"
        for feature, prefixes in FEATURES.items():
            if name.startswith(prefixes):
                for kind in parameters:
                    outcomes[kind, feature].add(state)
    return outcomes


def format_table(reports: dict[str, Path]) -> str:
    """Format the table: the releases in which each feature works, by family."""
    by_release = {release: read_outcomes(path) for release, path in reports.items()}
    first = "equal to short inputs and to masking"
    kinds = sorted(
        {kind for outcomes in by_release.values() for kind, feature in outcomes if feature == first and kind}
    )
    kinds = [kind for kind in kinds if kind not in ("sdpa", "eager")]
    lines = [f"| family | {' | '.join(FEATURES)} |", f"|---|{'---|' * len(FEATURES)}"]
    for kind in kinds:
        cells = []
        for feature in FEATURES:
            works = [
                release
                for release, outcomes in by_release.items()
                if "passed" in outcomes.get((kind, feature), ()) and "failed" not in outcomes[kind, feature]
            ]
            cells.append("yes" if len(works) == len(by_release) else ", ".join(works) or "-")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    tested = " and ".join(reports)
    note = (
        f"Run with transformers {tested} on tiny models with random weights. yes: works in both; a release: works in "
        "that one only, because the bare model of the other cannot do it; -: does not apply, or is not supported yet."
    )
    return "\n".join([*lines, "", note])


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
