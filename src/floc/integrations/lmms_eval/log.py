"""What is logged of each sample, and where: `token_counts` of lmms-eval's samples log, under "floc"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

KEY = "floc"


@dataclass(frozen=True)
class Figures:
    """What a sample cost."""

    tokens: int  # of its videos, before
    kept: int  # after
    coverage: float | None  # mean cosine between tokens and their representatives; None without a video
    select_s: float  # seconds of the selection
    total_s: float  # seconds from the request to the answer, decoding included
    shapes: list[tuple[int, int, int]]  # frames, rows and columns of tokens of each video

    def as_json(self) -> dict[str, Any]:
        """As it stands in the log."""
        return asdict(self)

    @classmethod
    def of_json(cls, logged: dict[str, Any]) -> Figures:
        """What `as_json` gave."""
        return cls(**{**logged, "shapes": [tuple(each) for each in logged["shapes"]]})


class Logged(NamedTuple):
    """A line of a samples log."""

    doc_id: int
    figures: Figures


def read(path: Path) -> Iterator[Logged]:
    """The figures in a samples log, a `*_samples_TASK.jsonl` that lmms-eval wrote.

    Samples whose answers came out of lmms-eval's cache have none, and are left out.
    """
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                sample = json.loads(line)
                counts = sample["token_counts"]
                logged = [each[KEY] for each in counts if each is not None and KEY in each]
                found = [Logged(sample["doc_id"], Figures.of_json(each)) for each in logged]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: line {number} is no sample that a floc model answered ({error!r}); "
                    "run lmms_eval with --log_samples"
                ) from error
            yield from found
