"""The common parts of the clustering methods: options, blocks on threads, distances, and a token per cluster."""

import importlib
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from floc import blocks, scenes
from floc._checks import check_choice
from floc._system import check_memory, count_threads, run_in_threads, single_threaded_blas
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.tokens import TokenGrid

Select = Callable[[torch.Tensor, int], np.ndarray]  # [n, D] tokens of a block and a count k < n -> [k] picks

FEATURE_STEP = 512  # features of a block converted to float64 at a time
# Squared distances are differences of products in float64. Below this fraction of the tokens' squared lengths, a few
# units in the last place of float32, only rounding is left: such tokens count as duplicates.
NO_DISTANCE = 1e-13

_one_call_at_a_time = threading.Lock()


@dataclass(frozen=True)
class ClusterMethod:
    """Base class of methods that keep one token per cluster. A subclass adds `_select`."""

    name: ClassVar[str]
    package: ClassVar[str] = "scikit-learn"
    matrices: ClassVar[int] = 0  # [n, n] float64 matrices needed for a block
    threads: ClassVar[int | None] = None  # blocks processed at a time; None: as many as torch has threads

    block: BlockSpec = 8  # frames clustered together; None: the whole video
    seed: int = 0

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {self.seed!r}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        try:
            for module in self._list_modules():
                importlib.import_module(module)  # before the threads start, which must not import at the same time
        except ImportError as error:
            raise ImportError(
                f"method {self.name!r} needs {self.package}: pip install 'floc-video[cluster]'"
            ) from error
        spans = scenes.find_blocks(grid, self.block)
        n = max(span.stop - span.start for span in spans) * grid.cells
        needed = 8 * n * n * self.matrices * min(count_threads(), len(spans))
        check_memory(n, needed, torch.device("cpu"), "block=8, or fewer frames")
        return grid.keep(select_in_blocks(grid, spans, budget, self._select, self.threads))

    def _list_modules(self) -> tuple[str, ...]:
        """Return the modules that `_select` imports."""
        return ("sklearn.cluster",)

    def _select(self, tokens: torch.Tensor, k: int) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class BatchedClusterMethod(ClusterMethod):
    """Base class of methods that also select from many blocks at once in torch. A subclass adds `_select_batches`."""

    backend: str = "auto"  # "torch", "cpu", or "auto": torch for tokens on a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("backend", self.backend, ("auto", "torch", "cpu"))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        device = grid.tokens.device.type
        if self.backend == "torch" and device == "mps":
            raise ValueError("backend='torch' needs float64, which this GPU lacks; move the tokens to the CPU")
        if self.backend == "torch" or (self.backend == "auto" and device == "cuda"):
            return grid.keep(self._select_batches(grid, scenes.find_blocks(grid, self.block), budget))
        return super().__call__(grid, budget)

    def _select_batches(self, grid: TokenGrid, spans: list[slice], budget: int) -> np.ndarray:
        raise NotImplementedError


def select_in_blocks(
    grid: TokenGrid, spans: list[slice], budget: int, select: Select, threads: int | None = None
) -> np.ndarray:
    """Select tokens in every block and return their flat indices: [budget] int64, ascending.

    Up to `threads` blocks run at a time. The libraries' thread pools are limited to one thread: in blocks of a few
    hundred tokens their threads mostly wait, and the order of their sums would depend on how many there are.
    """
    sizes = [(span.stop - span.start) * grid.cells for span in spans]
    shares = blocks.share_budget(sizes, budget).tolist()
    picks = [np.zeros(0, np.int64)] * len(spans)  # of each block

    def run(block: int) -> None:
        span, size, k = spans[block], sizes[block], shares[block]
        places = np.arange(size) if k == size else np.sort(select(grid.frames(span).detach(), k))
        picks[block] = span.start * grid.cells + places

    # A limit restores the thread counts it found. Calls therefore run one at a time, inside the other limit on BLAS.
    with _one_call_at_a_time, single_threaded_blas():
        controller = ThreadpoolController()  # must be new: it only knows libraries that are already loaded

        def limit_threads() -> None:
            torch.get_num_threads()  # the first call in a thread sets OpenMP's count, which would undo the limit
            controller.limit(limits=1, user_api="openmp")

        present = [block for block, share in enumerate(shares) if share]
        workers = min(count_threads(), threads or len(present))
        with controller.limit(limits=1), warnings.catch_warnings():  # one worker alone is this thread
            # expected with duplicate tokens; the budget is then filled up
            warnings.filterwarnings("ignore", "Number of distinct clusters")
            run_in_threads(run, present, workers, limit_threads)
    return np.concatenate(picks)


def to_float32(tokens: torch.Tensor) -> torch.Tensor:
    """Convert tokens to float32, on the CPU if their device has no float64."""
    return (tokens if tokens.device.type in ("cpu", "cuda") else tokens.cpu()).float()


def compute_squared_distances(x: torch.Tensor) -> torch.Tensor:
    """Return the squared Euclidean distances between [n, D] tokens: [n, n] float64.

    >>> compute_squared_distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    products = compute_products(x.double())
    squares = products.diagonal()
    lengths = squares[:, None] + squares
    distance = products.mul_(-2).add_(lengths)
    distance[distance <= NO_DISTANCE * lengths] = 0
    return distance


def compute_products(x: torch.Tensor) -> torch.Tensor:
    """Return the dot products of [n, D] tokens: [n, n].

    Uses numpy on a CPU: it detects that both factors are the same and computes half. torch's BLAS ignores the limit on
    OpenMP's threads, so that several threads calling it would block each other.
    """
    return torch.from_numpy(x.numpy() @ x.numpy().T) if x.device.type == "cpu" else x @ x.T


def find_duplicates(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of each set of equal [n, D] tokens, [distinct], and the set of each token, [n].

    >>> first, group = find_duplicates(np.array([[2.0], [1.0], [2.0]]))
    >>> first[group].tolist()
    [0, 1, 0]
    """
    if len(np.unique(x.sum(1, dtype=np.float64))) == len(x):  # the usual case, without duplicates
        return np.arange(len(x)), np.arange(len(x))
    rows = np.ascontiguousarray(x + 0.0)  # -0.0 and 0.0 are equal but have different bytes
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    return np.unique(keys, return_index=True, return_inverse=True)[1:]


def select_representatives(x: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Select k of [n, D] tokens: in each cluster of [n] labels the member nearest to the mean, the first on ties.

    If there are fewer than k clusters, the tokens farthest from their cluster's representative follow, duplicates last.

    >>> select_representatives(np.array([[0.0], [1.0], [5.0], [1.5], [5.0]]), np.array([1, 1, 0, 1, 0]), 3).tolist()
    [2, 1, 0]
    """
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(labels, kind="stable")
    starts = counts.cumsum() - counts
    steps = [slice(start, start + FEATURE_STEP) for start in range(0, x.shape[1], FEATURE_STEP)]
    distance = np.zeros(len(x))
    # in float64 the two members of a pair are exactly equally far from their mean
    for step in steps:
        members = x[order, step].astype(np.float64)
        members -= np.repeat(np.add.reduceat(members, starts, axis=0) / counts[:, None], counts, axis=0)
        distance[order] += np.square(members, out=members).sum(1)
    picks = np.lexsort((distance, labels))[starts]
    if len(picks) == k:
        return picks

    distance = np.zeros(len(x))  # to the representative
    for step in steps:
        difference = x[:, step].astype(np.float64) - x[picks[labels], step]
        distance += np.square(difference, out=difference).sum(1)
    is_duplicate = ~np.isin(np.arange(len(x)), find_duplicates(x)[0])
    rest = np.setdiff1d(np.arange(len(x)), picks)
    return np.concatenate([picks, rest[np.lexsort((-distance[rest], is_duplicate[rest]))][: k - len(picks)]])
