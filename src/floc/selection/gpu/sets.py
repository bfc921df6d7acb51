"""Where the sets of one launch lie: a table that every kernel reads, a row for each set.

A set has candidates, tokens to cover, the matrix of their similarities, and the picks made from it. Where the matrix is
its own transpose, the same memory holds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import triton.language as tl

TILE = 128  # rows and columns of a tile of a product
PIECE = 16  # candidates that are evaluated together
PIECE_OF_TOKENS = 64  # tokens whose representatives are found together
STRIDE = 64  # every row of a matrix is a multiple of this long, so that rows start on full memory transactions

# columns of the table
CANDIDATES = tl.constexpr(0)
TOKENS = tl.constexpr(1)
MATRIX = tl.constexpr(2)  # where the matrix starts, [candidates, tokens]
MATRIX_STRIDE = tl.constexpr(3)
TURNED = tl.constexpr(4)  # where its transpose starts
TURNED_STRIDE = tl.constexpr(5)
FIRST_CANDIDATE = tl.constexpr(6)  # in arrays that hold the candidates of all sets, and
FIRST_TOKEN = tl.constexpr(7)  # their tokens
DEPTH = tl.constexpr(8)  # how many to pick
FIRST_PICK = tl.constexpr(9)  # in arrays that hold the picks of all sets
COLUMNS = tl.constexpr(10)


@dataclass(frozen=True)
class Sets:
    """Sets that are chosen from together."""

    candidates: tuple[int, ...]
    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    symmetric: bool
    device: torch.device

    def __len__(self) -> int:
        return len(self.candidates)

    @cached_property
    def elements(self) -> int:
        """Of all matrices together."""
        return self._layout[1]

    @cached_property
    def table(self) -> torch.Tensor:
        """[B, COLUMNS] int64 on the device."""
        return torch.tensor(self._layout[0], dtype=torch.int64, device=self.device)

    @cached_property
    def picks(self) -> int:
        """Of all sets together."""
        return sum(self.depths)

    @cached_property
    def _layout(self) -> tuple[list[list[int]], int]:
        rows, used, candidate, token, pick = [], 0, 0, 0, 0
        for m, n, depth in zip(self.candidates, self.tokens, self.depths, strict=True):
            matrix, stride = used, round_up(n, STRIDE)
            used += m * stride
            turned, turned_stride = matrix, stride
            if not self.symmetric:
                turned, turned_stride = used, round_up(m, STRIDE)
                used += n * turned_stride
            rows.append([m, n, matrix, stride, turned, turned_stride, candidate, token, depth, pick])
            candidate, token, pick = candidate + m, token + n, pick + depth
        return rows, used

    def matrices(self, memory: torch.Tensor) -> Iterator[torch.Tensor]:
        """Each set's [M, N] matrix in the memory that holds all of them."""
        for m, n, start, stride, *_ in self._layout[0]:
            yield memory[start : start + m * stride].view(m, stride)[:, :n]

    def transposes(self, memory: torch.Tensor) -> Iterator[torch.Tensor]:
        """Each set's [N, M] transpose."""
        for m, n, _, _, start, stride, *_ in self._layout[0]:
            yield memory[start : start + n * stride].view(n, stride)[:, :m]

    def pieces(self, counts: Sequence[int], size: int) -> torch.Tensor:
        """[P, 2] int32: the set and the first of at most `size` of its `counts`, for each piece of the work."""
        return torch.tensor(
            [(b, start) for b, count in enumerate(counts) for start in range(0, count, size)],
            dtype=torch.int32,
            device=self.device,
        )

    @cached_property
    def candidate_pieces(self) -> torch.Tensor:
        """PIECE candidates each."""
        return self.pieces(self.candidates, PIECE)

    @cached_property
    def token_pieces(self) -> torch.Tensor:
        """PIECE_OF_TOKENS tokens each."""
        return self.pieces(self.tokens, PIECE_OF_TOKENS)

    @cached_property
    def set_of_token(self) -> torch.Tensor:
        """[tokens of all sets] int32."""
        return repeated(range(len(self)), self.tokens, self.device, torch.int32)

    @cached_property
    def first_of_token(self) -> torch.Tensor:
        """[tokens of all sets] int64, where its set begins."""
        return repeated([row[FIRST_TOKEN.value] for row in self._layout[0]], self.tokens, self.device)

    @cached_property
    def tiles(self) -> torch.Tensor:
        """[P, 3] int32: the set, and the first row and column of each tile of a matrix; of a symmetric one half."""
        return torch.tensor(
            [
                (b, row, column)
                for b, (m, n) in enumerate(zip(self.candidates, self.tokens, strict=True))
                for row, column in _tiles(-(-m // TILE), -(-n // TILE), lower=self.symmetric)
            ],
            dtype=torch.int32,
            device=self.device,
        )


_TOGETHER = (
    16  # tiles a side of a square that is worked on at a time, so that its tokens stay in the second-level cache
)


def _tiles(rows: int, columns: int, *, lower: bool) -> list[tuple[int, int]]:
    """First rows and columns, square after square."""
    return [
        (i * TILE, j * TILE)
        for top in range(0, rows, _TOGETHER)
        for left in range(0, columns, _TOGETHER)
        for i in range(top, min(top + _TOGETHER, rows))
        for j in range(left, min(left + _TOGETHER, columns))
        if not lower or j <= i
    ]


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def share(count: int, members: int) -> int:
    """Of so many, each member's: whole vectors."""
    return round_up(-(-count // members), 16)


def repeated(
    values: Sequence[int], counts: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """[sum of counts] on the device: each value as often as its count says.

    What is kept for later calls is made on the host and copied: a kernel of this stream might not have run when another
    stream reads it.
    """
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), torch.tensor(counts)).to(device)
