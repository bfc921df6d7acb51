"""Greedy facility location on a band of similarities in torch, many picks a round: the picks of `reference.greedy`.

A pick changes the gains of candidates at most 2h slices away, where h is the horizon. So a candidate that has the
largest gain among all candidates within 2h slices (the lowest index among equals) is picked by sequential greedy with
that gain, whatever happens elsewhere, and all such candidates are picked in one round. Sorted by gain, then by index,
the picks are those of sequential greedy: see docs/background/how-it-works.md.

All steps of a round have fixed sizes, so the host waits for the device only once in CHECK rounds. The cover of raised
tokens changes for at most `_count_slots` tokens a round; the others wait. Until then the gains that they change are too
large, which is safe: a candidate is picked only if its own gain is up to date.
"""

import torch
import torch.nn.functional as F

from floc._arrays import iterate_tiles
from floc.selection.engine import Band, Raises

CHECK = 16  # rounds between two checks whether enough picks were made


def greedy(
    similarity: torch.Tensor, band: Band, k: int, given: torch.Tensor | None = None, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick `k` tokens from a symmetric band, [n, width] int16 of at least 0; returns [k] int64 picks and gains.

    For `given` and `first` see `Job`.
    """
    rounds = Rounds(similarity, band, first)
    if given is not None and len(given):
        rounds.cover_by(given)
    return run_rounds(rounds, k)


def run_rounds(rounds: "Rounds", k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run rounds until the first `k` picks of sequential greedy are known, and return them and their gains."""
    while True:
        for _ in range(CHECK):
            rounds.run()
        if rounds.is_done(k):
            return rounds.sort_picks(k)


class Rounds:
    """The state of a selection. Padded arrays have `reach` entries before the first token and after the last one."""

    def __init__(self, similarity: torch.Tensor, band: Band, first: int) -> None:
        self.similarity, self.band = similarity, band
        self.first = first  # earlier tokens are no candidates
        n, device = band.n, similarity.device
        self.bits = max(1, (n - 1).bit_length())
        self.index = torch.arange(n, device=device)
        self.complement = (1 << self.bits) - 1 - self.index  # a key is `gain << bits | complement of the index`
        parts = iterate_tiles(n, 8 * band.width)
        sums = torch.cat([similarity[part].sum(1, dtype=torch.int64) for part in parts])
        self.gain = F.pad(sums, (band.reach, band.reach))  # [padded], an upper limit where tokens wait
        self.cover = torch.zeros(n + 2 * band.reach, dtype=torch.int16, device=device)  # the gains are for this one
        self.target = self.cover.clone()  # what the cover is to become
        self.picked = torch.full((n,), -1, dtype=torch.int64, device=device)  # the key at which a token was picked
        self.offsets = torch.arange(band.width, device=device)
        self.starts = torch.arange(band.frames, device=device) * band.cells  # of each slice's row, in padded arrays
        self.slots = _count_slots(band)

    def cover_by(self, given: torch.Tensor) -> None:
        """Cover the tokens around those that were picked before, and compute all gains again."""
        places = (given // self.band.cells * self.band.cells)[:, None] + self.offsets
        self.cover.scatter_reduce_(0, places.view(-1), self.similarity[given].view(-1), "amax")
        self.target = self.cover.clone()
        around = self.cover.unfold(0, self.band.width, self.band.cells)  # [T, width]
        for part in iterate_tiles(self.band.n, 8 * self.band.width):
            rises = self.similarity[part] - around[self.index[part] // self.band.cells]
            self.gain[self.band.reach + self.index[part]] = rises.clamp_(min=0).sum(1, dtype=torch.int64)

    def run(self) -> None:
        """Pick all local maxima, then lower the gains of what they cover."""
        band = self.band
        keys = self._compute_keys()
        largest, place = keys.view(band.frames, band.cells).max(1)
        around = _slide_maximum(largest, 2 * band.horizon)
        waiting = (self.target > self.cover)[band.reach : band.reach + band.n].view(band.frames, band.cells).any(1)
        is_exact = _slide_maximum(waiting.long(), band.horizon) == 0
        is_pick = (largest == around) & is_exact & (largest >> self.bits > 0)  # at most one in a slice
        token = self.starts + place
        is_pick = self._select_picks(is_pick, token, largest)
        self.picked[token] = torch.where(is_pick, largest, self.picked[token])
        rows = torch.where(is_pick[:, None], self.similarity[token], 0)  # [T, width]
        places = (self.starts[:, None] + self.offsets).view(-1)
        self.target.scatter_reduce_(0, places, rows.view(-1), "amax")
        self._raise_cover()

    def _select_picks(self, is_pick: torch.Tensor, token: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        """Return [T] bool, which of the slices' best tokens to pick in this round; `largest` are their keys."""
        return is_pick

    def _compute_gains(self) -> torch.Tensor:
        return self.gain[self.band.reach : self.band.reach + self.band.n]

    def _compute_keys(self) -> torch.Tensor:
        is_candidate = (self.picked < 0) & (self.index >= self.first)
        return torch.where(is_candidate, (self._compute_gains() << self.bits) | self.complement, -1)

    def _raise_cover(self) -> None:
        """Raise the cover of some of the tokens whose target is higher, and lower the gains accordingly."""
        inner = slice(self.band.reach, self.band.reach + self.band.n)
        waits = self.target[inner] > self.cover[inner]
        number = waits.cumsum(0)
        slots = min(self.slots, int(number[-1])) if waits.device.type == "cpu" else self.slots
        # the first `slots` of them, without asking how many there are; places left over hold n
        token = torch.full((slots + 1,), self.band.n, device=waits.device)
        token.scatter_(0, torch.where(waits, number - 1, slots).clamp_max(slots), self.index)
        token = token[:slots]
        is_used = torch.arange(slots, device=waits.device) < number[-1]
        token = torch.where(is_used, token, 0)
        old, new = self.cover[inner][token], self.target[inner][token]
        new = torch.where(is_used, new, old)
        for part in iterate_tiles(slots, 32 * self.band.width):
            low, high = old[part, None], new[part, None]
            loss = self.similarity[token[part]].clamp(low, high) - low
            start = token[part] // self.band.cells * self.band.cells
            self.gain.index_add_(0, (start[:, None] + self.offsets).view(-1), loss.view(-1).long(), alpha=-1)
        self.cover[inner].scatter_reduce_(0, token, new, "amax")

    def is_done(self, k: int) -> bool:
        """Return whether no remaining candidate can be among the first k picks; waits for the device."""
        left = self._compute_keys().max()
        kth = self.picked.topk(k).values[-1]
        return bool((left < kth) | (left >> self.bits <= 0))

    def sort_picks(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first k picks of sequential greedy: by gain, then by index. What was not picked gains nothing."""
        keys = torch.where(self.picked < 0, self.complement, self.picked)[self.first :].topk(k).values
        return (1 << self.bits) - 1 - (keys & ((1 << self.bits) - 1)), keys >> self.bits


def _count_slots(band: Band) -> int:
    """Return how many tokens can be raised in a round: about as many as the picks of one raise later on."""
    return min(band.n, max(256, band.n // 16))


def _slide_maximum(values: torch.Tensor, reach: int) -> torch.Tensor:
    """Return the maximum of [T] values of at least -1 over the 2 * reach + 1 entries around each.

    >>> _slide_maximum(torch.tensor([1, 5, 2, 0, 3]), 1).tolist()
    [5, 5, 5, 3, 3]
    """
    reach = min(reach, len(values) - 1)
    return F.pad(values, (reach, reach), value=-1).unfold(0, 2 * reach + 1, 1).amax(1)


def trace_history(similarity: torch.Tensor, band: Band, picks: torch.Tensor) -> Raises:
    """List every time a pick raised a token's cover above 0, in the order of [P] picks; see `Raises`."""
    cover = torch.zeros(band.n, dtype=torch.int64, device=picks.device)
    offsets = torch.arange(band.width, device=picks.device) - band.reach
    parts = []
    for part in iterate_tiles(len(picks), 64 * band.width):
        rows = similarity[picks[part]].long()  # [P, width]
        token = (picks[part] // band.cells * band.cells)[:, None] + offsets
        is_above = rows > cover[token.clamp(0, band.n - 1)]  # columns outside of the video are 0
        rank = torch.nonzero(is_above)[:, 0] + part.start
        token, value = token[is_above], rows[is_above]
        by_token = torch.sort(token, stable=True).indices
        level = (token << 16 | value)[by_token]
        highest = F.pad(level.cummax(0).values[:-1], (1, 0), value=-1)[: len(level)]
        better = by_token[level > highest].sort().values
        token, rank, value = token[better], rank[better], value[better]
        cover.scatter_reduce_(0, token, value, "amax")
        parts.append((token, rank, value.to(torch.int16)))
    tokens, ranks, covers = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return tokens, ranks, covers
