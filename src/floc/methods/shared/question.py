"""The tokens of a question as further targets of the selection.

A token of the question can be represented by any token of the video, or of the block, whatever the horizon.

Embeddings of text and of images lie apart: the cosine of a word with all tokens of a video is nearly the same. What
tells where a word is shown is the difference from its mean over the video.
"""

import torch

from floc._arrays import TILE_BYTES, Array, iterate_tiles
from floc._checks import is_number, shorten
from floc._system import check_memory
from floc.methods.shared.inputs import read_floats
from floc.representatives import normalize
from floc.selection.objective import SCALE, WEIGHT_SCALE

LARGEST_WEIGHT = 100  # of a question: gains then fit 64 bits
_BYTES = 32  # of temporary values, for each pair of a token and a token of the question


def check_question(has_query: bool, weight: object) -> None:
    """Raise ValueError unless a question and a valid weight are given together, or neither."""
    if not (is_number(weight) and 0 <= weight <= LARGEST_WEIGHT):  # type: ignore[operator]  # a number
        allowed = f"a number from 0 to {LARGEST_WEIGHT}, the weight of the question; the video has 1"
        raise ValueError(f"query_weight must be {allowed}; got {shorten(weight)}")
    if has_query and not weight:
        raise ValueError(
            "query has no effect with query_weight=0; pass a weight, such as query_weight=0.25, or no query"
        )
    if weight and not has_query:
        raise ValueError(f"query_weight={shorten(weight)} needs the question: pass its embeddings as query=")


def read_query(query: Array | None, tokens: torch.Tensor) -> torch.Tensor | None:
    """Check [Q, D] embeddings of a question to [..., D] tokens, and move them to the tokens' device."""
    return read_floats(query, "query", ("Q", tokens.shape[-1]), device=tokens.device)


def compute_relevance(tokens: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return [n, Q] int16 in fixed point, how well each of [n, D] tokens represents each of [Q, D] question tokens.

    It is the cosine less its mean over all tokens, at least 0, divided by the largest of all these values. A question
    token that is equally similar to all tokens says nothing about them, and has relevance 0.
    """
    n, count = len(tokens), len(query)
    check_memory(n, _BYTES * n * count, tokens.device, f"a shorter question than {count} tokens, or fewer frames")
    words = normalize(query.to(tokens.device)).T.contiguous()  # [D, Q]
    cosine = torch.empty(n, count, device=tokens.device)
    for part in iterate_tiles(n, 4 * max(words.shape), TILE_BYTES):
        cosine[part] = normalize(tokens[part]) @ words
    cosine -= cosine.mean(0)
    largest = cosine.max()
    return (cosine.clamp_(min=0) / torch.where(largest > 1e-5, largest, 1) * SCALE).round().to(torch.int16)


def scale_weight(weight: float, tokens: int, words: int) -> int:
    """Return the weight of each of `words` question tokens that together weigh `weight` times as much as `tokens`.

    >>> scale_weight(0.5, tokens=24, words=6)  # 2 tokens each, in units of 1 / WEIGHT_SCALE
    512
    """
    return max(1, round(weight * WEIGHT_SCALE * tokens / words))
