"""Other libraries that choose representatives, each given a block in the format it likes best.

`prepare` makes that format, untimed, and returns the call that is timed; the call returns the picks.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.blocks import BlockTokens

NOT_INSTALLED = "not installed: pip install 'floc-video[bench]'"
Prepare = Callable[[BlockTokens, int], Callable[[], np.ndarray]]


@dataclass(frozen=True)
class Peer:
    """A library, or a way to call it."""

    name: str
    package: str  # to import
    prepare: Prepare
    bytes_a_pair: int | None  # the format it is given, for each pair of tokens; None where it works on the tokens
    most_tokens: int | None = None  # beyond, it is left out

    def why_not(self, n: int) -> str | None:
        """Why it does not take part, or None."""
        if importlib.util.find_spec(self.package) is None:
            return NOT_INSTALLED
        if self.most_tokens is not None and n > self.most_tokens:
            return f"left out beyond {self.most_tokens} tokens, for its time"
        return None


def _apricot(block: BlockTokens, k: int) -> Callable[[], np.ndarray]:
    from apricot import FacilityLocationSelection

    similarity = block.cosine.clip(min=0)  # it takes no negative similarities; here they are a few in 100,000

    def choose() -> np.ndarray:
        return FacilityLocationSelection(k, metric="precomputed", optimizer="lazy").fit(similarity).ranking

    return choose


def _apricot_compiled(block: BlockTokens, k: int) -> Callable[[], np.ndarray]:
    """Without its compilation: each fit compiles its gain functions anew; here it finds those of the first fit."""
    from apricot.functions import facilityLocation as source

    choose, kept = _apricot(block, k), _apricot_kept()

    def choose_compiled() -> np.ndarray:
        shipped = {name: getattr(source, name) for name in kept}
        vars(source).update(kept)
        try:
            return choose()
        finally:
            vars(source).update(shipped)

    return choose_compiled


@functools.cache
def _apricot_kept() -> dict[str, Callable]:
    """The functions in which apricot compiles, with memory; all else in a fit stays as it is."""
    from apricot.functions import facilityLocation as source

    return {name: functools.cache(getattr(source, name)) for name in ("calculate_gains", "calculate_gains_sieve")}


def _submodlib(block: BlockTokens, k: int) -> Callable[[], np.ndarray]:
    from submodlib.functions.facilityLocation import FacilityLocationFunction

    n = len(block.cosine)
    kernel = block.cosine.astype(np.float32)
    function = FacilityLocationFunction(n=n, mode="dense", sijs=kernel, separate_rep=False)

    def choose() -> np.ndarray:
        picks = function.maximize(budget=k, optimizer="LazyGreedy", show_progress=False)
        return np.array([index for index, _ in picks])

    return choose


def _fasterpam(block: BlockTokens, k: int) -> Callable[[], np.ndarray]:
    import kmedoids

    distance = (1 - block.cosine).astype(np.float32)
    return lambda: kmedoids.fasterpam(distance, k, random_state=0).medoids.astype(np.int64)


def _kmeans(block: BlockTokens, k: int) -> Callable[[], np.ndarray]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    unit = block.unit.astype(np.float32)

    def choose() -> np.ndarray:
        # One start and few steps: more would take minutes. One thread: two were a tenth faster when nothing else ran,
        # and ten times slower when something did.
        with threadpool_limits(1):
            centres = KMeans(k, n_init=1, max_iter=10, random_state=0).fit(unit).cluster_centers_
        return np.unique((centres @ unit.T).argmax(1))  # two centres may share their nearest token

    return choose


PEERS = (
    Peer("apricot, as shipped", "apricot", _apricot, bytes_a_pair=8),
    Peer("apricot, compilation excluded", "apricot", _apricot_compiled, bytes_a_pair=8),
    Peer("submodlib", "submodlib", _submodlib, bytes_a_pair=4),
    Peer("FasterPAM (kmedoids)", "kmedoids", _fasterpam, bytes_a_pair=4),
    Peer("k-means + nearest token (scikit-learn)", "sklearn", _kmeans, bytes_a_pair=None, most_tokens=2000),
)
