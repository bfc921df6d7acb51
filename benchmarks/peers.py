"""Other libraries that select representatives, each given a block in its own format.

`prepare` makes that format, untimed, and returns the call to time; the call returns the picks.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.oracle import BlockTokens

NOT_INSTALLED = "not installed: pip install 'floc-video[bench]'"
Select = Callable[[], np.ndarray]  # returns the picks


@dataclass(frozen=True)
class Peer:
    """A library, or one way to call it."""

    name: str
    package: str  # to import
    prepare: Callable[[BlockTokens, int], Select]
    pair_bytes: int | None  # bytes of its format for each pair of tokens; None if it works on the tokens
    max_tokens: int | None = None  # skipped above

    def explain_skip(self, n: int) -> str | None:
        """Return why it is skipped on n tokens, or None if it runs."""
        if importlib.util.find_spec(self.package) is None:
            return NOT_INSTALLED
        if self.max_tokens is not None and n > self.max_tokens:
            return f"too slow above {self.max_tokens} tokens"
        return None


def _apricot(block: BlockTokens, k: int) -> Select:
    from apricot import FacilityLocationSelection

    similarity = block.cosine.clip(min=0)  # apricot rejects negative similarities; a few in 100,000 are negative here

    def select() -> np.ndarray:
        return FacilityLocationSelection(k, metric="precomputed", optimizer="lazy").fit(similarity).ranking

    return select


def _apricot_compiled(block: BlockTokens, k: int) -> Select:
    """Exclude compilation: apricot compiles its gain functions at each fit; here all fits share the first ones."""
    from apricot.functions import facilityLocation as source

    select, cached = _apricot(block, k), _cache_apricot_functions()

    def select_compiled() -> np.ndarray:
        shipped = {name: getattr(source, name) for name in cached}
        vars(source).update(cached)
        try:
            return select()
        finally:
            vars(source).update(shipped)

    return select_compiled


@functools.cache
def _cache_apricot_functions() -> dict[str, Callable]:
    from apricot.functions import facilityLocation as source

    return {name: functools.cache(getattr(source, name)) for name in ("calculate_gains", "calculate_gains_sieve")}


def _submodlib(block: BlockTokens, k: int) -> Select:
    from submodlib.functions.facilityLocation import FacilityLocationFunction

    kernel = block.cosine.astype(np.float32)
    function = FacilityLocationFunction(n=len(kernel), mode="dense", sijs=kernel, separate_rep=False)

    def select() -> np.ndarray:
        picks = function.maximize(budget=k, optimizer="LazyGreedy", show_progress=False)
        return np.array([index for index, _ in picks])

    return select


def _fasterpam(block: BlockTokens, k: int) -> Select:
    import kmedoids

    distance = (1 - block.cosine).astype(np.float32)
    return lambda: kmedoids.fasterpam(distance, k, random_state=0).medoids.astype(np.int64)


def _kmeans(block: BlockTokens, k: int) -> Select:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    unit = block.unit.astype(np.float32)

    def select() -> np.ndarray:
        # One start and few steps: more would take minutes. One thread: two were 10% faster on an idle machine, and ten
        # times slower on a busy one.
        with threadpool_limits(1):
            centres = KMeans(k, n_init=1, max_iter=10, random_state=0).fit(unit).cluster_centers_
        return np.unique((centres @ unit.T).argmax(1))  # two centres may share their nearest token

    return select


PEERS = (
    Peer("apricot, as shipped", "apricot", _apricot, pair_bytes=8),
    Peer("apricot, compilation excluded", "apricot", _apricot_compiled, pair_bytes=8),
    Peer("submodlib", "submodlib", _submodlib, pair_bytes=4),
    Peer("FasterPAM (kmedoids)", "kmedoids", _fasterpam, pair_bytes=4),
    Peer("k-means + nearest token (scikit-learn)", "sklearn", _kmeans, pair_bytes=None, max_tokens=2000),
)
