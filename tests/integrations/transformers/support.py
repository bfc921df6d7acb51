"""The support table of docs/models/README.md, from what the tests said: `make support`.

    python tests/integrations/support.py docs/models/README.md 5.17.0=old.xml 5.22.2=new.xml

A feature works for a family where all its tests of that family passed. Where every one was skipped, the bare model of
that release cannot do it, or the family has no such thing.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

GENERATION = "test_generation_equals_that_with_dropped_tokens_masked"
# a feature, and how the names of its tests begin
FEATURES = {
    "equal to short inputs and to masking": (
        "test_all_tokens_are_bit_identical",
        "test_equals_inputs_shortened_by_hand",
        "test_equals_the_bare_model_with_dropped_tokens_masked",
        "test_the_cache_holds_kept_and_text",
        "test_the_model_is_left_as_it_was",
    ),
    "greedy": (f"{GENERATION}[greedy",),
    "beams": (f"{GENERATION}[beams", f"{GENERATION}[several beams"),
    "sampling": (f"{GENERATION}[sampling",),
    "no cache": (f"{GENERATION}[no cache",),
    "static cache": (f"{GENERATION}[static cache", "test_static_cache_eager"),
    "prompt lookup": (f"{GENERATION}[prompt lookup",),
    "further turns": ("test_a_second_turn_goes_on_from_the_cache", "test_another_video_in_a_second_turn"),
    "pictures beside": ("test_pictures_are_left_alone",),
    "compact positions": ("test_compact_positions_have_no_gaps",),
    "merging methods": ("test_merged_features_go_in_where_the_method_puts_them",),
    "capture and replay": (
        "test_replay_has_the_logits_of_attach",
        "test_another_question_on_the_same_video",
        "test_several_videos_in_a_prompt",
        "test_a_smaller_budget_from_the_same_file",
    ),
    "floc ask": ("test_an_answer_is_that_of_the_model_with_a_fraction_of_the_tokens",),
}
MARKED = re.compile(r"(<!-- support -->\n).*?(<!-- /support -->)", re.DOTALL)


def outcomes(report: Path) -> dict[tuple[str, str], set[str]]:
    """Of a JUnit report, for each family and feature what its tests came to: passed, skipped, failed."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        parameters = re.split(r"[\[\]-]", name)[1:]
        state = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
        if case.find("skipped") is not None:
            state = "skipped"
        for feature, begins in FEATURES.items():
            if name.startswith(begins):
                for kind in parameters:
                    found[kind, feature].add(state)
    return found


def table(reports: dict[str, Path]) -> str:
    """Families by features: the releases in which a feature works."""
    by_release = {release: outcomes(path) for release, path in reports.items()}
    always = "equal to short inputs and to masking"
    kinds = sorted({kind for found in by_release.values() for kind, feature in found if feature == always and kind})
    kinds = [kind for kind in kinds if kind not in ("sdpa", "eager")]
    lines = [f"| family | {' | '.join(FEATURES)} |", f"|---|{'---|' * len(FEATURES)}"]
    for kind in kinds:
        cells = []
        for feature in FEATURES:
            works = [
                release
                for release, found in by_release.items()
                if "passed" in found.get((kind, feature), ()) and "failed" not in found[kind, feature]
            ]
            cells.append("yes" if len(works) == len(by_release) else ", ".join(works) or "-")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    tested = " and ".join(reports)
    note = (
        f"Run with transformers {tested}, tiny models with random weights. yes: in both; else the release in which it "
        "works, where the bare model of the other cannot do it; -: the family has no such thing, or not yet."
    )
    return "\n".join([*lines, "", note])


def main(page: Path, reports: dict[str, Path]) -> None:
    """Put the table between the markers of a page."""
    text = page.read_text()
    if not MARKED.search(text):
        raise ValueError(f"{page}: has no <!-- support --> ... <!-- /support --> to fill")
    page.write_text(MARKED.sub(lambda found: f"{found[1]}\n{table(reports)}\n\n{found[2]}", text))


if __name__ == "__main__":
    main(Path(sys.argv[1]), {each.split("=")[0]: Path(each.split("=")[1]) for each in sys.argv[2:]})
