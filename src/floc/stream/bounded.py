"""The past of a stream with a budget: survivors that carry the sums of what they stand for, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import as_given, like, numpy_of
from ..selection.engine import Engine, Job, Solution, Targets
from ..selection.objective import SCALE, Similarity
from ..standing import Summed
from ..types import Kept

DEDUPE = 1.5  # less than `floc.compress` takes: a choice from the survivors costs the square of their number
ROOM = 2  # survivors held before they are chosen from again, for each one that stays: fewer choices, more memory
SPREAD = 1.25  # how far from its fair share what a block hands on may be, by what it gains
WEIGHT_LIMIT = 2.0**30  # weights add up to no more, so that exact gains fit 64 bits


@dataclass(frozen=True, eq=False)
class _Survivors:
    """Tokens that stand for others, and the sums of those."""

    features: torch.Tensor  # [M, D]
    sums: torch.Tensor  # [M, D] float32, of the normalised tokens each stands for
    index: np.ndarray  # [M] int64, flat index in the whole video
    time_s: np.ndarray  # [M]

    def __len__(self) -> int:
        return len(self.index)


class _Room:
    """Survivors one after another in one piece of memory, which is never moved."""

    def __init__(self, like: _Survivors, room: int) -> None:
        self.room = _Survivors(
            like.features.new_empty(room, like.features.shape[1]),
            like.sums.new_empty(room, like.sums.shape[1]),
            np.empty(room, np.int64),
            np.empty(room),
        )
        self.count = 0
        self.add(like)

    def held(self) -> _Survivors:
        room, until = self.room, self.count
        return _Survivors(room.features[:until], room.sums[:until], room.index[:until], room.time_s[:until])

    def add(self, new: _Survivors) -> None:
        until = self.count + len(new)
        for name in ("features", "sums", "index", "time_s"):
            getattr(self.room, name)[self.count : until] = getattr(new, name)
        self.count = until

    def put(self, few: _Survivors) -> None:
        """Put these in the place of all there were."""
        self.count = 0
        self.add(few)


class Bounded:
    """The past with a budget: survivors, chosen from again whenever they are too many."""

    def __init__(self, budget: int, dedupe: float, half_life_s: float | None) -> None:
        self.budget = budget
        self.stay = math.ceil(budget * dedupe)  # survivors after a reduction
        self.half_life_s = half_life_s
        self.room: _Room | None = None
        self.blocks = 0
        self.frames = 0
        self.cells: tuple[int, int] | None = None
        self.counted = 0.0  # tokens there were, as far as they have not faded
        self.bar = 0.0  # what the last survivor that stayed had gained
        self.until_s = 0.0
        self.block_tokens = 0

    def add(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> None:
        new = self._survivors(engine, similarity, tokens, times)
        fading = self._fading(times[-1])
        if self.room is None:
            self.block_tokens = tokens.shape[:3].numel()
            self.room = _Room(new, ROOM * self.stay + self.block_tokens)
        else:
            if fading < 1:
                self.room.held().sums.mul_(fading)
            self.room.add(new)
        self.cells = (tokens.shape[1], tokens.shape[2])
        self.counted = self.counted * fading + tokens.shape[:3].numel()
        self.until_s = times[-1]
        self.blocks += 1
        self.frames += len(tokens)
        if self.room.count > ROOM * self.stay:
            few, self.bar = _reduced(engine, similarity, self.room.held(), self.stay)
            self.room.put(few)

    def _survivors(
        self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]
    ) -> _Survivors:
        """What one more block hands on: its fair share of what stays, a little more or less by what it gains."""
        flat = tokens.flatten(0, 2)
        cells = tokens.shape[1] * tokens.shape[2]
        fair = math.ceil(self.stay / (self.blocks + 1))
        depth = min(len(flat), math.ceil(SPREAD * fair))
        (solution,) = engine.solve([Job(flat, depth)], similarity, with_cosines=False)
        worthy = int(np.count_nonzero(solution.gains / SCALE > self.bar)) if self.bar else fair
        count = min(depth, max(1, math.floor(fair / SPREAD), worthy))
        cluster = solution.history.representatives(len(flat), count)
        directions, lengths = engine.sum_by_cluster([(flat, cluster)], count, unit=True)
        picks = solution.picks[:count]
        return _Survivors(
            flat[torch.from_numpy(picks).to(flat.device)],
            directions.to(flat.device) * torch.from_numpy(lengths).to(flat.device, torch.float32)[:, None],
            self.frames * cells + picks,
            np.asarray(times)[picks // cells],
        )

    def _fading(self, now_s: float) -> float:
        """What is left of the past's weight."""
        if self.half_life_s is None or not self.blocks:
            return 1.0
        return 0.5 ** ((now_s - self.until_s) / self.half_life_s)

    def kept(
        self,
        engine: Engine,
        similarity: Similarity,
        rest: torch.Tensor | None,
        times: Sequence[float],
        numpy_dtype: np.dtype | None,
    ) -> Kept:
        held, counted, frames = None if self.room is None else self.room.held(), self.counted, self.frames
        if rest is not None:
            new = self._survivors(engine, similarity, rest, times)
            fading = self._fading(times[-1])
            held = new if held is None else _and(held, new, fading)
            counted = counted * fading + rest.shape[:3].numel()
            frames += len(rest)
        assert held is not None, "there was a frame"
        rows, columns = self.cells or rest.shape[1:3]  # type: ignore[union-attr]
        lengths, directions = _split(held.sums)
        chosen = _chosen(engine, similarity, held, directions, lengths, min(self.budget, len(held)))
        picked = held.index[chosen.picks]
        places = chosen.picks[np.argsort(picked)]
        indices = held.index[places]
        features = held.features[torch.from_numpy(places).to(held.features.device)]
        given = as_given(features, numpy_dtype)
        return Kept(
            indices=like(given, indices),
            features=given,
            positions=like(given, np.stack(np.unravel_index(indices, (frames, rows, columns)), 1)),
            order=like(given, np.searchsorted(indices, picked)),
            gains=like(given, chosen.gains / (SCALE * _scale(lengths))),
            shape=(frames, rows, columns),
            nested=True,
            standing=Summed(directions, lengths, counted, features, indices),
            times_s=like(given, held.time_s[places]),
        )

    def about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _BOUNDED}

    def state(self) -> dict[str, torch.Tensor]:
        if self.room is None:
            return {}
        held = self.room.held()
        return {
            "features": held.features,
            "sums": held.sums,
            "index": torch.from_numpy(held.index),
            "time_s": torch.from_numpy(held.time_s),
        }

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        if about["cells"] is None:
            return
        for name in _BOUNDED:
            setattr(self, name, tuple(about[name]) if name == "cells" else about[name])
        held = _Survivors(state["features"], state["sums"], numpy_of(state["index"]), numpy_of(state["time_s"]))
        self.room = _Room(held, ROOM * self.stay + about["block_tokens"])


_BOUNDED = ("blocks", "frames", "cells", "counted", "bar", "until_s", "block_tokens")  # numbers that are saved


def _and(held: _Survivors, new: _Survivors, fading: float) -> _Survivors:
    """Survivors, faded, and more of them."""
    return _Survivors(
        torch.cat([held.features, new.features]),
        torch.cat([held.sums * fading, new.sums]),
        np.concatenate([held.index, new.index]),
        np.concatenate([held.time_s, new.time_s]),
    )


def _reduced(engine: Engine, similarity: Similarity, held: _Survivors, stay: int) -> tuple[_Survivors, float]:
    """Choose who stays; the sums of those who go are added to those of their representatives."""
    lengths, directions = _split(held.sums)
    chosen = _chosen(engine, similarity, held, directions, lengths, stay)
    heir = torch.from_numpy(chosen.history.representatives(len(held), stay)).to(held.sums.device)
    sums = torch.zeros(stay, held.sums.shape[1], device=held.sums.device).index_add(0, heir, held.sums)
    bar = float(chosen.gains[-1]) / (SCALE * _scale(lengths))
    in_time = np.argsort(held.index[chosen.picks])
    picks = chosen.picks[in_time]
    here = torch.from_numpy(picks).to(sums.device)
    sums = sums[torch.from_numpy(in_time).to(sums.device)]
    return _Survivors(held.features[here], sums, held.index[picks], held.time_s[picks]), bar


def _chosen(
    engine: Engine, similarity: Similarity, held: _Survivors, directions: torch.Tensor, lengths: np.ndarray, count: int
) -> Solution:
    weights = np.rint(lengths * _scale(lengths)).astype(np.int64)
    return engine.solve_weighted(held.features, Targets(directions, lengths, weights), count, similarity)


def _split(sums: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    """[M] lengths and [M, D] directions."""
    lengths = torch.linalg.vector_norm(sums, dim=1)
    return numpy_of(lengths).astype(np.float64), sums / lengths.clamp(min=1e-30)[:, None]


def _scale(lengths: np.ndarray) -> float:
    """What makes lengths into whole numbers: fine, and as small as their sum requires."""
    return min(256.0, WEIGHT_LIMIT / max(1.0, float(lengths.sum())))
