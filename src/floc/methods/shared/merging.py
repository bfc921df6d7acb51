"""Merged tokens in video order, with representatives for the tokens that were merged into none."""

import numpy as np
import torch

from floc.kept import Kept
from floc.representatives import find_nearest
from floc.tokens import TokenGrid


def merge_rows(grid: TokenGrid, indices: torch.Tensor, features: torch.Tensor, represents: torch.Tensor) -> Kept:
    """Keep [K, D] features at [K] flat indices, in any order.

    Args:
        grid: The tokens.
        indices: [K] int64 on the tokens' device.
        features: [K, D].
        represents: [n] int64, the row that each token went into; -1 if it was dropped. The most similar kept token
            represents it then.
    """
    order = indices.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    indices, features = indices[order], features[order]
    represents = torch.where(represents < 0, -1, place[represents])
    dropped = (represents < 0).nonzero()[:, 0]
    if len(dropped):
        represents[dropped] = find_nearest(grid.gather(dropped.cpu().numpy()), features)[1]
    return grid.merge(indices.cpu().numpy(), features, represents.cpu().numpy())


def pad_groups(members: torch.Tensor, sizes: np.ndarray) -> torch.Tensor:
    """Arrange [M] members, group after group, in one row for each group, padded with their last: [G, max(sizes)].

    >>> pad_groups(torch.tensor([7, 8, 9]), np.array([1, 2])).tolist()
    [[7, 8], [8, 9]]
    """
    starts = sizes.cumsum() - sizes
    places = np.minimum(starts[:, None] + np.arange(sizes.max()), len(members) - 1)
    return members[torch.from_numpy(places).to(members.device)]
