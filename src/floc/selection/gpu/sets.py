"""Memory layout of the sets of one launch: a table with one row per set, which every kernel reads.

A set has candidates, tokens to cover, the matrix of their similarities, its transpose, and the picks. A symmetric
matrix is its own transpose and is stored once.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import triton
import triton.language as tl

TILE = 128  # rows and columns of a tile of a matrix product
CANDIDATE_CHUNK = 16  # candidates evaluated by one program
TOKEN_CHUNK = 64  # tokens whose representatives one program finds
STRIDE = 64  # rows of a matrix are padded to a multiple of this, so that they start on full memory transactions
_TILE_GROUP = 16 * TILE  # side of a square of tiles that are computed together: its tokens stay in the L2 cache

# columns of the table
CANDIDATES = tl.constexpr(0)  # number of candidates
TOKENS = tl.constexpr(1)  # number of tokens
MATRIX = tl.constexpr(2)  # start of the [candidates, tokens] matrix
MATRIX_STRIDE = tl.constexpr(3)
TRANSPOSE = tl.constexpr(4)  # start of its transpose
TRANSPOSE_STRIDE = tl.constexpr(5)
FIRST_CANDIDATE = tl.constexpr(6)  # start in arrays over the candidates of all sets
FIRST_TOKEN = tl.constexpr(7)  # start in arrays over the tokens of all sets
DEPTH = tl.constexpr(8)  # number of picks to make
FIRST_PICK = tl.constexpr(9)  # start in arrays over the picks of all sets
COLUMNS = tl.constexpr(10)


@triton.jit
def load_sizes(table, index):
    """Load the number of candidates, tokens and picks of a set."""
    row = table + index * COLUMNS
    return tl.load(row + CANDIDATES), tl.load(row + TOKENS), tl.load(row + DEPTH)


@triton.jit
def load_starts(table, index):
    """Load where a set's candidates, tokens and picks start in arrays over all sets."""
    row = table + index * COLUMNS
    return tl.load(row + FIRST_CANDIDATE), tl.load(row + FIRST_TOKEN), tl.load(row + FIRST_PICK)


@triton.jit
def load_matrix(table, index, memory):
    """Return a pointer to a set's [candidates, tokens] matrix, and its stride."""
    row = table + index * COLUMNS
    stride = tl.multiple_of(tl.load(row + MATRIX_STRIDE), 64)
    return memory + tl.multiple_of(tl.load(row + MATRIX), 64), stride


@triton.jit
def load_transpose(table, index, memory):
    """Return a pointer to a set's [tokens, candidates] matrix, and its stride."""
    row = table + index * COLUMNS
    stride = tl.multiple_of(tl.load(row + TRANSPOSE_STRIDE), 64)
    return memory + tl.multiple_of(tl.load(row + TRANSPOSE), 64), stride


@dataclass(frozen=True)
class Sets:
    """The sizes of the sets of one launch, and the tables derived from them."""

    candidates: tuple[int, ...]
    tokens: tuple[int, ...]
    depths: tuple[int, ...]  # number of picks to make in each set
    symmetric: bool
    device: torch.device

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def elements(self) -> int:
        """Number of elements of all matrices together."""
        return self._layout[1]

    @cached_property
    def table(self) -> torch.Tensor:
        """[B, COLUMNS] int64 on the device."""
        return torch.tensor(self._layout[0], dtype=torch.int64, device=self.device)

    @cached_property
    def _layout(self) -> tuple[list[list[int]], int]:
        rows, used, candidate, token, pick = [], 0, 0, 0, 0
        for m, n, depth in zip(self.candidates, self.tokens, self.depths, strict=True):
            matrix, stride = used, triton.cdiv(n, STRIDE) * STRIDE
            used += m * stride
            transpose, transpose_stride = matrix, stride
            if not self.symmetric:
                transpose, transpose_stride = used, triton.cdiv(m, STRIDE) * STRIDE
                used += n * transpose_stride
            rows.append([m, n, matrix, stride, transpose, transpose_stride, candidate, token, depth, pick])
            candidate, token, pick = candidate + m, token + n, pick + depth
        return rows, used

    def matrices(self, memory: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield each set's [M, N] matrix as a view of the memory of all matrices."""
        for m, n, start, stride, *_ in self._layout[0]:
            yield memory[start : start + m * stride].view(m, stride)[:, :n]

    def transposes(self, memory: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield each set's [N, M] transpose as a view of the memory of all matrices."""
        for m, n, _, _, start, stride, *_ in self._layout[0]:
            yield memory[start : start + n * stride].view(n, stride)[:, :m]

    @cached_property
    def candidate_chunks(self) -> torch.Tensor:
        """[P, 2] int32: the set and first candidate of each chunk of CANDIDATE_CHUNK candidates."""
        return self._split(self.candidates, CANDIDATE_CHUNK)

    @cached_property
    def token_chunks(self) -> torch.Tensor:
        """[P, 2] int32: the set and first token of each chunk of TOKEN_CHUNK tokens."""
        return self._split(self.tokens, TOKEN_CHUNK)

    def _split(self, counts: Sequence[int], size: int) -> torch.Tensor:
        chunks = [(b, start) for b, count in enumerate(counts) for start in range(0, count, size)]
        return torch.tensor(chunks, dtype=torch.int32, device=self.device)

    @cached_property
    def tiles(self) -> torch.Tensor:
        """[P, 3] int32: the set, first row and first column of each tile; of a symmetric matrix the lower triangle."""
        tiles = [
            (b, row, column)
            for b, (m, n) in enumerate(zip(self.candidates, self.tokens, strict=True))
            for top, left in itertools.product(range(0, m, _TILE_GROUP), range(0, n, _TILE_GROUP))
            for row in range(top, min(top + _TILE_GROUP, m), TILE)
            for column in range(left, min(left + _TILE_GROUP, n), TILE)
            if not self.symmetric or column <= row
        ]
        return torch.tensor(tiles, dtype=torch.int32, device=self.device)


def divide_among(count: int, programs: int) -> int:
    """Return how many of `count` items each program handles: a multiple of 16, for whole vectors."""
    return triton.cdiv(count, programs * 16) * 16


def repeat_values(values: Sequence[int], counts: Sequence[int], device: torch.device) -> torch.Tensor:
    """[sum of counts] int64 on the device: each value repeated by its count.

    The result is cached for later calls, so it is computed on the host: a kernel on the current stream might not have
    run yet when another stream reads it.
    """
    return torch.repeat_interleave(torch.tensor(values), torch.tensor(counts)).to(device)
