"""Greedy selection on a band with a question, many picks a round: the picks of `reference.greedy`.

A pick can change the gains of all candidates by what it adds to the question. A candidate that adds nothing to it keeps
its gain until a candidate within 2h slices is picked, and its pick changes no gain further away. So in a round all
local maxima of that kind are picked, as in `band_rounds`, and the candidate with the largest gain of all.
"""

import torch

from floc.selection.engine import Band, Question
from floc.selection.objective import WEIGHT_SCALE
from floc.selection.torch import band_rounds


def greedy(values: torch.Tensor, band: Band, k: int, question: Question) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick `k` tokens from a symmetric band, [n, width] int16 of at least 0; returns [k] int64 picks and gains."""
    return band_rounds.run_rounds(_QuestionRounds(values, band, question), k)


class _QuestionRounds(band_rounds.Rounds):
    def __init__(self, values: torch.Tensor, band: Band, question: Question) -> None:
        super().__init__(values, band, 0)
        self.relevance = question.relevance.long() * question.weight  # [n, Q], so that gains are plain sums
        self.asked = self.relevance.new_zeros(self.relevance.shape[1])  # [Q] cover of the question
        self.question_gain = self.relevance.sum(1)  # [n]

    def _compute_gains(self) -> torch.Tensor:
        return WEIGHT_SCALE * super()._compute_gains() + self.question_gain

    def _select_picks(self, is_pick: torch.Tensor, token: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        is_pick = is_pick & ((self.question_gain[token] == 0) | (largest == largest.max()))
        best = torch.where(is_pick[:, None], self.relevance[token], 0).amax(0)
        self.asked = torch.maximum(self.asked, best)
        self.question_gain = (self.relevance - self.asked).clamp_(min=0).sum(1)
        return is_pick
