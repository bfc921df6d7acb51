"""What clustering methods share: blocks on threads of their own, distances, and a token for each cluster."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from floc import blocks, scenes
from floc._format import format_bytes
from floc._system import available_bytes, count_threads, single_threaded_blas
from floc.blocks import BlockSpec
from floc.tokens import TokenGrid

Choose = Callable[[torch.Tensor, int], np.ndarray]

FEATURES_TOGETHER = 512  # of all tokens of a block in float64 at a time
# Squares of distances are differences of products in float64. Below this share of the tokens' squared lengths, at
# distances of a few units in the last place of float32, what is left is rounding: such tokens count as the same.
NO_DISTANCE = 1e-13

_one_at_a_time = threading.Lock()


def require_block_and_seed(block: object, seed: object) -> None:
    """Complain of a block that is no way to cut a video, or a seed that numpy's generator would not take."""
    blocks.check_block(block)
    if not (_is_whole(seed) and 0 <= seed < 2**32):  # type: ignore[operator]
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")


def require_clusters(method: str, n_clusters: int | None, n: int) -> int:
    """How many clusters were asked for, or an error that says what is wrong with that."""
    if n_clusters is None:
        raise ValueError(f"{method} needs n_clusters=, or a ratio or budget")
    if not (_is_whole(n_clusters) and 1 <= n_clusters <= n):
        raise ValueError(f"n_clusters must be a whole number in 1..{n}, the tokens there are; got {n_clusters!r}")
    return int(n_clusters)


def chosen(grid: TokenGrid, block: BlockSpec, budget: int, choose: Choose, at_once: int | None = None) -> np.ndarray:
    """[budget] flat indices, ascending: `choose([n, D] tokens of a block, k < n) -> [k]` with each block's share.

    One thread for each block, as many at a time as torch has threads, or `at_once`. The libraries' own threads are held
    to one: in blocks of a few hundred tokens they wait for each other longer than they work, and the order in which
    they add up would depend on their number.
    """
    spans = scenes.find_blocks(grid, block)
    cells = grid.shape[1] * grid.shape[2]
    sizes = [(span.stop - span.start) * cells for span in spans]
    jobs = [job for job in zip(spans, sizes, blocks.share_budget(sizes, budget).tolist(), strict=True) if job[2]]

    def pick(job: tuple[slice, int, int]) -> np.ndarray:
        span, size, k = job
        mine = np.arange(size) if k == size else np.sort(choose(grid.frames(span).detach(), k))
        return span.start * cells + mine

    # What a limit puts back must be what it found: so no other call in between, and what else holds BLAS to one thread
    # holds it longer.
    with _one_at_a_time, single_threaded_blas():
        controller = ThreadpoolController()  # a new one: it only knows libraries that were loaded before it

        def single_threaded() -> None:
            torch.get_num_threads()  # torch sets a thread's OpenMP when first asked: now, or it would undo the limit
            controller.limit(limits=1, user_api="openmp")

        pool = ThreadPoolExecutor(
            min(count_threads(), len(jobs), at_once or len(jobs)), "floc", initializer=single_threaded
        )
        try:
            with controller.limit(limits=1, user_api="blas"), warnings.catch_warnings():
                # fewer clusters than asked for are filled up
                warnings.filterwarnings("ignore", "Number of distinct clusters")
                return np.concatenate(list(pool.map(pick, jobs)))
        finally:
            pool.shutdown(cancel_futures=True)


def on_device(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens in float32, where there is float64 too."""
    return (tokens if tokens.device.type in ("cpu", "cuda") else tokens.cpu()).float()


def squared_distances(x: torch.Tensor) -> torch.Tensor:
    """[n, n] float64 squares of the Euclidean distances between [n, D] tokens.

    >>> squared_distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    products = dot_products(x.double())
    squares = products.diagonal()
    lengths = squares[:, None] + squares
    distance = products.mul_(-2).add_(lengths)
    distance[distance <= NO_DISTANCE * lengths] = 0
    return distance


def dot_products(x: torch.Tensor) -> torch.Tensor:
    """[n, n] of each of [n, D] tokens with each.

    On a CPU by numpy: it sees that the two factors are one, and computes half; and torch's own BLAS takes as many
    threads as it likes, also where OpenMP is held to one, so that some threads doing this at a time block each other.
    """
    return torch.from_numpy(x.numpy() @ x.numpy().T) if x.device.type == "cpu" else x @ x.T


def require_memory(method: str, grid: TokenGrid, block: BlockSpec, matrices: int) -> None:
    """Complain of blocks too large for their matrices of distances before any work is done.

    Args:
        matrices: how many [n, n] matrices in float64 are held at a time for each block.
    """
    spans = scenes.find_blocks(grid, block)
    n = max(span.stop - span.start for span in spans) * grid.shape[1] * grid.shape[2]
    needed = 8 * n * n * matrices * min(count_threads(), len(spans))
    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise MemoryError(
            f"{method} on {n} tokens together needs {format_bytes(needed)}, {format_bytes(available)} are free; "
            "pass block=8, or fewer frames"
        )


def identical(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[distinct] the first token of each kind among [n, D] tokens, and [n] the kind of each token.

    >>> first, kind = identical(np.array([[2.0], [1.0], [2.0]]))
    >>> first[kind].tolist()
    [0, 1, 0]
    """
    if len(np.unique(x.sum(1, dtype=np.float64))) == len(x):  # so there are none, as a rule
        return np.arange(len(x)), np.arange(len(x))
    rows = np.ascontiguousarray(x + 0.0)  # -0.0 and 0.0 differ in their bytes only
    _, first, kind = np.unique(
        rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel(), return_index=True, return_inverse=True
    )
    return first, kind


def representatives(x: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """[k] tokens: in each cluster the member nearest to the mean of the members, the first of several.

    Where there are fewer clusters than k, then the tokens farthest from the one that represents their cluster, those
    that repeat another token last.

    Args:
        x: [n, D] float32.
        labels: [n] int, each token's cluster.

    >>> representatives(np.array([[0.0], [1.0], [5.0], [1.5], [5.0]]), np.array([1, 1, 0, 1, 0]), 3).tolist()
    [2, 1, 0]
    """
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(labels, kind="stable")
    starts = counts.cumsum() - counts
    distance = np.zeros(len(x))
    # in float64, and from the differences: the two members of a pair are then exactly as far from their mean
    for part in _feature_slices(x):
        members = x[order, part].astype(np.float64)
        members -= np.repeat(np.add.reduceat(members, starts, axis=0) / counts[:, None], counts, axis=0)
        distance[order] += np.square(members, out=members).sum(1)
    picks = np.lexsort((distance, labels))[starts]
    if len(picks) == k:
        return picks

    apart = np.zeros(len(x))
    for part in _feature_slices(x):
        difference = x[:, part].astype(np.float64) - x[picks[labels], part]
        apart += np.square(difference, out=difference).sum(1)
    repeats = np.ones(len(x), bool)
    repeats[identical(x)[0]] = False
    rest = np.setdiff1d(np.arange(len(x)), picks)
    return np.concatenate([picks, rest[np.lexsort((-apart[rest], repeats[rest]))][: k - len(picks)]])


def _feature_slices(x: np.ndarray) -> list[slice]:
    return [slice(start, start + FEATURES_TOGETHER) for start in range(0, x.shape[1], FEATURES_TOGETHER)]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
