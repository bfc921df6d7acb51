"""Select some of a captured video's tokens again, steered by a question."""

from typing import NamedTuple

import torch

from floc._arrays import iterate_tiles
from floc._system import check_memory
from floc.methods.floc import Floc, choose_horizon
from floc.methods.shared.question import compute_relevance, scale_weight
from floc.selection.backends import create_engine
from floc.selection.engine import Question, join_targets
from floc.selection.objective import SCALE, WEIGHT_SCALE, Similarity
from floc.selection.torch.engine import compute_symmetric_matrix


class Steered(NamedTuple):
    """Tokens that were selected again, most important first."""

    picks: torch.Tensor  # [count] int64 places among the captured tokens
    gains: torch.Tensor  # [count] float64


def select_by_question(
    features: torch.Tensor,
    members: torch.Tensor | None,
    frames: torch.Tensor,
    total: int,
    count: int,
    query: torch.Tensor,
    weight: float,
) -> Steered:
    """Select `count` of the kept tokens that best represent all kept tokens and the question.

    A token is represented within the horizon of the method "floc" for `count` of `total` tokens, as in a selection from
    the whole video.

    Args:
        features: [K, D] kept tokens.
        members: [K] int64, how many tokens of the video each counts for; None: equally many.
        frames: [K] int64, the frame of each.
        total: Number of tokens of the video.
        count: Number of tokens to select, at most K.
        query: [Q, D] embeddings of the words of the question.
        weight: of the question; all tokens of the video together weigh 1.
    """
    kept, horizon = len(features), choose_horizon(total, count)
    check_memory(kept, 4 * kept * (kept + len(query)), features.device, "a smaller budget when capturing")
    matrix, _ = compute_symmetric_matrix(features, Similarity("cosine", Floc.detail))
    frames = frames.to(matrix.device)
    for part in iterate_tiles(kept, 16 * kept):
        matrix[part].masked_fill_((frames[part, None] - frames).abs() > horizon, 0)
    relevance = compute_relevance(features, query)
    represented = kept if members is None else int(members.sum())
    targets, weights = join_targets(matrix, Question(relevance, scale_weight(weight, represented, len(query))))
    if members is not None:
        weights[:kept] *= members.cpu().numpy()
    picks, gains = create_engine("auto", targets.device).select([targets], [count], weights)
    return Steered(picks.to(features.device), gains.double() / (SCALE * WEIGHT_SCALE))
