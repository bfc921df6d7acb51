"""Project tokens to the plane with t-SNE."""

from typing import NamedTuple

import numpy as np

from floc._arrays import Array, to_numpy
from floc.representatives import normalize
from floc.tokens import TokenGrid

SAMPLE = 2000  # points: readable in a plot, and computed in seconds
COMPONENTS = 32  # principal components passed to t-SNE; the rest is noise


class Projection(NamedTuple):
    """A sample of tokens and their coordinates in the plane."""

    indices: np.ndarray  # [M] int64 flat index t*H*W + y*W + x, ascending
    xy: np.ndarray  # [M, 2] float32, from -1 to 1


def tsne(tokens: Array, *, sample: int = SAMPLE, seed: int = 0) -> Projection:
    """Compute t-SNE, by cosine, of a uniform random sample of tokens. Deterministic for a given seed."""
    from threadpoolctl import threadpool_limits

    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError("t-SNE needs scikit-learn: pip install 'floc-video[report]'") from error

    grid = TokenGrid.from_array(tokens)
    indices = np.sort(np.random.default_rng(seed).choice(grid.n, min(sample, grid.n), replace=False))
    rows = to_numpy(normalize(grid.gather(indices)))  # [M, D]; for length 1, a small distance is a high cosine
    if len(rows) < 4:  # too few points for t-SNE
        return Projection(indices, np.linspace(-1, 1, 2 * len(rows), dtype=np.float32).reshape(-1, 2)[:, [0, 0]])
    if np.allclose(rows, rows[0], atol=1e-6):  # all tokens are equal
        return Projection(indices, np.zeros((len(rows), 2), np.float32))
    rows = PCA(min(COMPONENTS, *rows.shape), random_state=seed).fit_transform(rows)
    start = rows[:, :2] if rows.shape[1] > 1 else np.concatenate([rows, np.zeros_like(rows)], 1)
    start = start / max(start[:, 0].std(), 1e-9) * 1e-4
    model = TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), init=start, random_state=seed, learning_rate="auto")
    # t-SNE runs many short parallel loops: threads gain little, and triple the time if other work uses the cores
    with threadpool_limits(limits=1):
        embedding = model.fit_transform(rows)
    embedding -= embedding.mean(0)
    return Projection(indices, (embedding / np.abs(embedding).max().clip(1e-9)).astype(np.float32))
