"""`Captured`: the tokens of a video that were kept for a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._arrays import Array
from floc.budget import Budget
from floc.captured.identity import Identity
from floc.captured.steer import select_by_question
from floc.families import FAMILIES
from floc.families.locate import Shape
from floc.families.preparation import Preparation
from floc.families.processing import Turns, VideoPreparer
from floc.methods.shared.question import check_question, read_query


@dataclass(frozen=True, eq=False)
class Captured:
    """K tokens of T x H x W, kept of one video, ready for a model."""

    features: torch.Tensor  # [K, D] in the model's dtype
    indices: torch.Tensor  # [K] int64, ascending flat index t*H*W + y*W + x
    order: torch.Tensor  # [K] int64 positions in `indices`, most important first
    gains: torch.Tensor  # [K] float64, what each token added, in that order
    deep: tuple[torch.Tensor, ...]  # [K, D] each, what the model adds to the tokens in its first layers
    shape: Shape  # T, H, W: slices, rows and columns of all tokens
    model: Identity
    made: Mapping[str, Any]  # method, settings, coverage, seconds and more; JSON-serializable
    nested: bool  # whether `order` holds the answers for smaller budgets
    times_s: np.ndarray | None = None  # [T] time of the first frame of each slice
    last_s: np.ndarray | None = None  # [T] time of its last frame
    frames_per_slice: int = 1
    fps: float | None = None  # sampled frames per second
    duration_s: float | None = None  # of the video
    members: torch.Tensor | None = None  # [K] int64, how many tokens each represents, itself included; None if unknown

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def n(self) -> int:
        """Number of tokens before compression."""
        return math.prod(self.shape)

    @property
    def ratio(self) -> float:
        """Kept / total."""
        return len(self) / self.n

    @property
    def positions(self) -> torch.Tensor:
        """[K, 3] int64 (t, y, x)."""
        return torch.stack(torch.unravel_index(self.indices, self.shape), 1)

    def __repr__(self) -> str:
        return f"Captured({len(self)} of {self.n} tokens, for {self.model}, method {self.made.get('method')!r})"

    def at(
        self,
        *,
        ratio: float | str | None = None,
        budget: int | None = None,
        query: Array | None = None,
        query_weight: float = 0,
    ) -> "Captured":
        """Return the result for a smaller ratio (kept / total) or budget.

        Without a question it is a prefix of the stored order, and nothing is recomputed. With one, tokens are selected
        again among those that were kept, by method "floc".

            video.at(ratio=1/32, query=embed_text(model, processor, question), query_weight=0.25)

        Args:
            ratio, budget: as in `floc.compress`; no more than was kept.
            query: [Q, D] embeddings of the words of the question; see `floc.integrations.transformers.embed_text`.
            query_weight: of the question; all tokens of the video together weigh 1.
        """
        target = Budget.parse(ratio, budget, None)
        count = target.count(self.n)
        check_question(query is not None, query_weight)
        words = read_query(query, self.features)
        if count == len(self):
            return self
        if not self.nested and words is None:
            merged = "merge" in self.made.get("settings", {})
            problem = "tokens were merged" if merged else f"method {self.made.get('method')!r} keeps no nested order"
            raise ValueError(f"{problem}; capture again at {target}")
        if count > len(self):
            kept = f"only {len(self)} were kept"
            raise ValueError(f"{target} needs {count} tokens, but {kept}; capture again with a larger budget")
        made: dict[str, Any] = {**self.made, "coverage": None, "bound": None}
        first, gains = self.order[:count], self.gains[:count]
        if words is not None:
            frames = self.positions[:, 0]
            first, gains = select_by_question(
                self.features, self.members, frames, self.n, count, words, float(query_weight)
            )
            first, gains = first.to(self.order.device), gains.to(self.gains.device)
            made["query_weight"] = float(query_weight)
        places = first.sort().values
        arrays: Any = dict(features=self.features[places], indices=self.indices[places], gains=gains)
        order, deep = torch.searchsorted(places, first), tuple(layer[places] for layer in self.deep)
        members = None if self.members is None else self.members[places]
        nested = self.nested or words is not None
        return replace(self, **arrays, order=order, deep=deep, made=made, nested=nested, members=members)

    def inputs(self, processor: Any, question: str, history: Turns = ()) -> Any:
        """Build the inputs of a question about this video, for `model.generate` inside `floc.replay`.

            inputs = video.inputs(processor, "What is on the table?").to(model.device)

        Args:
            processor: of the model that the video was captured with.
            history: earlier questions with their answers, oldest first.
        """
        record = self.made.get("preparation")
        if record is None:
            if self.model.kind in ("pixels", "mobilenet"):
                fix = "encode it with the model: floc ingest --encoder hf:MODEL, floc ask or floc.capture"
                raise ValueError(f"these tokens are of the encoder {self.model.kind!r}, which no model reads; {fix}")
            raise ValueError(
                "how this video was prepared is unknown; build the prompt with the model's processor, and remove pixels"
            )
        preparer = VideoPreparer(processor)
        plan = preparer.restore(Preparation.from_dict(record))
        asks_types = self.model.kind in FAMILIES and FAMILIES[self.model.kind].asks_token_types
        return preparer.write_prompt(plan, question, history, asks_token_types=asks_types)

    def save(self, path: str | Path) -> None:
        """Write a .floc file atomically."""
        from floc.captured.floc_file import save

        save(self, Path(path))
