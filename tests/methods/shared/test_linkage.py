"""Single-linkage trees compared with the connected components of each frame."""

from __future__ import annotations

import numpy as np
import torch

from examples.synthetic import make_tokens
from floc.methods.shared import components as linkage
from floc.tokens import TokenGrid
from tests.methods.test_scissor import find_components


def test_trees_contain_the_components_at_any_threshold() -> None:
    tokens = torch.from_numpy(make_tokens(4, 5, 6, dim=16, seed=5, dtype=np.float32))
    tokens[1] = tokens[1].round()  # some equal cosines
    trees = linkage.FrameTrees.build(TokenGrid.from_array(tokens))
    for tau in np.linspace(-1, 1, 41):
        expected = {
            tuple(30 * i + np.array(members))
            for i, frame in enumerate(tokens.flatten(1, 2).numpy().astype(np.float64))
            for _, members in find_components(frame, tau)
        }
        nodes = trees.find_nodes(tau, tau)
        assert len(nodes) == trees.count(tau)
        components = {
            tuple(sorted(trees.order[start : start + size].tolist()))
            for start, size in zip(trees.start[nodes].tolist(), trees.size[nodes].tolist(), strict=True)
        }
        assert components == expected
