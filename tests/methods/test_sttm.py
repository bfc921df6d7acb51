"""STTM compared with outputs of the published program and with its definition by boxes and loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods.shared import frames


class Node(NamedTuple):
    t: int
    box: tuple[int, int, int, int]  # y0, x0, y1, x1
    mean: np.ndarray


def compute_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))


def pair(length: int) -> list[list[int]]:
    """Pair {0, 1}, {2, 3}, ...; with an odd length the first is alone."""
    odd = length % 2
    return [[0]] * odd + [[i, i + 1] for i in range(odd, length, 2)]


def build_quadtree(frame: np.ndarray, t: int, threshold: float, root_level: int, sound: bool) -> list[Node]:
    h, w, _ = frame.shape
    levels = [{(y, x): Node(t, (y, x, y + 1, x + 1), frame[y, x]) for y in range(h) for x in range(w)}]
    children: list[dict] = [{}]
    while 2 not in (h, w) and (h, w) != (1, 1):
        fine, coarse, below = levels[-1], {}, {}
        for i, rows in enumerate(pair(h)):
            for j, columns in enumerate(pair(w)):
                below[i, j] = [(y, x) for y in rows for x in columns]
                quarters = [fine[cell] for cell in below[i, j]]
                boxes = np.array([quarter.box for quarter in quarters])
                box = (*boxes[:, :2].min(0).tolist(), *boxes[:, 2:].max(0).tolist())
                coarse[i, j] = Node(t, box, np.mean([quarter.mean for quarter in quarters], 0))
        levels.append(coarse)
        children.append(below)
        h, w = (h + 1) // 2, (w + 1) // 2
    root = max(0, len(levels) - 1 - root_level)

    def visit(level: int, cell: tuple[int, int]) -> list[Node]:
        node = levels[level][cell]
        if level == 0:
            return [node]
        slots = children[level][cell]
        tested = slots + [(0, 0)] * (0 if sound else 4 - len(slots))
        if all(compute_cosine(node.mean, levels[level - 1][slot].mean) >= threshold for slot in tested):
            return [node]
        return [node for slot in slots for node in visit(level - 1, slot)]

    nodes = [node for cell in levels[root] for node in visit(root, cell)]
    return sorted(nodes, key=lambda node: node.box[0] * frame.shape[1] + node.box[1])


def contains(a: Node, b: Node) -> bool:
    return a.box[0] <= b.box[0] and a.box[1] <= b.box[1] and a.box[2] >= b.box[2] and a.box[3] >= b.box[3]


def merge_by_definition(
    tokens: np.ndarray, spatial: float, temporal: float, root_level: int = 1, sound: bool = False
) -> tuple[list[int], np.ndarray, list[int]]:
    """Merge step by step in float64; return positions, means and represents."""
    tokens = tokens.astype(np.float64)
    _, h, w, _ = tokens.shape
    nodes = [node for t, frame in enumerate(tokens) for node in build_quadtree(frame, t, spatial, root_level, sound)]
    similar = [
        (a, b)
        for a, one in enumerate(nodes)
        for b, other in enumerate(nodes)
        if other.t == one.t + 1
        and (contains(one, other) or contains(other, one))
        and temporal > 0
        and compute_cosine(one.mean, other.mean) >= temporal
    ]
    group = list(range(len(nodes)))
    while True:
        new = group.copy()
        for a, b in similar:
            low = min(group[a], group[b])
            new[a], new[b] = min(new[a], low), min(new[b], low)
        group = [new[root] for root in new]
        settled = [group[root] for root in group] == group
        if settled and (not sound or all(group[a] == group[b] for a, b in similar)):
            break
    roots = sorted(set(group))
    positions = [nodes[root].t * h * w + nodes[root].box[0] * w + nodes[root].box[1] for root in roots]
    means = [np.mean([node.mean for node, own in zip(nodes, group, strict=True) if own == each], 0) for each in roots]
    represents = np.empty(tokens.shape[:3], np.int64)
    for node, own in zip(nodes, group, strict=True):
        y0, x0, y1, x1 = node.box
        represents[node.t, y0:y1, x0:x1] = roots.index(own)
    return positions, np.array(means), represents.ravel().tolist()


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"sttm_{case}")
    options = {name: golden[name].item() for name in ("spatial_threshold", "temporal_threshold", "root_level")}
    kept = floc.compress(golden["tokens"], method="sttm", **options)
    np.testing.assert_array_equal(kept.indices, golden["position_index"])
    np.testing.assert_allclose(kept.features, golden["merged"], atol=1e-5)
    np.testing.assert_array_equal(np.bincount(kept.represents), golden["num_patches"])
    np.testing.assert_array_equal(kept.positions, golden["tyxyx"][:, :3])

    kept = floc.compress(golden["tokens"], method="sttm", **options | {"temporal_threshold": 0.0})
    np.testing.assert_allclose(kept.features, golden["spatial_only_features"], atol=1e-5)
    t, y, x = np.unravel_index(np.arange(kept.n), kept.shape)
    for place, (frame, *box) in enumerate(golden["spatial_only_tyxyx"].tolist()):
        own = kept.represents == place
        assert (t[own] == frame).all()
        assert [y[own].min(), x[own].min(), y[own].max() + 1, x[own].max() + 1] == box


SHAPES = [
    (5, 7, 7, 1),
    (6, 9, 5, 1),
    (3, 13, 11, 1),
    (3, 14, 14, 0),
    (4, 16, 10, 0),
    (1, 8, 8, 1),
    (7, 1, 9, 1),
    (8, 2, 5, 1),
    (9, 1, 1, 1),
    (6, 3, 4, 1),
    (2, 14, 14, 5),
]


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize(("t", "h", "w", "root_level"), SHAPES)
def test_matches_definition(t: int, h: int, w: int, root_level: int, sound: bool) -> None:
    tokens = make_tokens(t, h, w, dim=24, seed=h * w, shot_frames=4, noise=0.25, dtype=np.float32)
    sizes = set()
    for spatial, temporal in [(0.8, 0.75), (0.9, 0.85), (0.95, 0.9), (0.85, 0.0), (-1.0, 1e-6)]:
        positions, means, represents = merge_by_definition(tokens, spatial, temporal, root_level, sound)
        options = dict(spatial_threshold=spatial, temporal_threshold=temporal, root_level=root_level, sound=sound)
        kept = floc.compress(tokens, method="sttm", **options)
        assert kept.indices.tolist() == positions
        np.testing.assert_allclose(kept.features, means, atol=1e-5)
        assert kept.represents.tolist() == represents
        sizes.add(len(kept))
    assert len(sizes) > 1


def test_published_loop_leaves_connected_nodes_apart() -> None:
    tokens = np.zeros((2, 4, 8, 3), np.float32)  # the 2 x 2 root cells merge in the second frame only
    tokens[0, :, :, :2] = np.where(np.indices((4, 8)).sum(0)[..., None] % 2, [1, 0.4], [0.4, 1])
    tokens[1, :, :, :2] = 1
    options = dict(spatial_threshold=0.99, temporal_threshold=0.8, method="sttm", root_level=0)
    published, sound = (floc.compress(tokens, **options, sound=each) for each in (False, True))
    assert len(sound) == 8  # every root cell of the second frame contains four tokens of the first
    assert len(published) == 32  # each joins only the first of them


def test_missing_quarter_counts_as_top_left_cell_unless_sound() -> None:
    tokens = np.zeros((1, 3, 5, 2), np.float32)
    tokens[..., 0] = 1
    tokens[0, 0, 0] = [0, 1]
    published, sound = (
        floc.compress(tokens, method="sttm", temporal_threshold=0.0, root_level=0, sound=each) for each in (False, True)
    )
    assert len(sound) == 6  # the root is 2 x 3
    assert len(published) == 9  # of the other four border cells, the three with two quarters are divided


@pytest.mark.parametrize("shape", [(70, 3, 4), (12, 8, 8), (10, 7, 9)])
@pytest.mark.parametrize("sound", [False, True])
def test_budget_reports_the_thresholds_of_its_result(shape: tuple[int, int, int], sound: bool) -> None:
    tokens = make_tokens(*shape, dim=32, seed=2, shot_frames=9, dtype=np.float32)
    n = len(tokens) * shape[1] * shape[2]
    along = [
        len(
            floc.compress(
                tokens, method="sttm", spatial_threshold=s, temporal_threshold=max(1e-6, s - 0.25), sound=sound
            )
        )
        for s in np.linspace(0, 1.3, 40)
    ]
    for budget in (n // 8, n // 3, n - 1):
        kept = floc.compress(tokens, budget=budget, method="sttm", sound=sound)
        assert max(count for count in along if count <= budget) <= len(kept) <= budget
        thresholds = {name: kept.settings[name] for name in ("spatial_threshold", "temporal_threshold")}
        again = floc.compress(tokens, method="sttm", sound=sound, **thresholds)
        np.testing.assert_array_equal(again.indices, kept.indices)
        np.testing.assert_array_equal(again.features, kept.features)
        np.testing.assert_array_equal(again.represents, kept.represents)


def test_full_budget_changes_nothing() -> None:
    tokens = np.ones((3, 6, 6, 5)) / 3
    kept = floc.compress(tokens, ratio=1, method="sttm")
    np.testing.assert_array_equal(kept.features, tokens.reshape(108, 5))
    thresholds = {name: kept.settings[name] for name in ("spatial_threshold", "temporal_threshold")}
    assert len(floc.compress(tokens, method="sttm", **thresholds)) == 108


def test_budget_below_floor_raises_or_keeps_the_floor() -> None:
    tokens = make_tokens(20, 6, 6, dim=32, dtype=np.float32)
    with pytest.raises(ValueError, match=r"at least \d+ of 720 tokens.*got a budget of 2.*nearest=True"):
        floc.compress(tokens, budget=2, method="sttm")
    kept = floc.compress(tokens, budget=2, method="sttm", nearest=True)
    assert 2 < len(kept) < 40
    assert kept.settings["spatial_threshold"] == -1


def test_rejects_invalid_options() -> None:
    with pytest.raises(ValueError, match="root_level must be 0"):
        floc.compress(np.ones((2, 2, 2, 2)), method="sttm", root_level=-1)
    with pytest.raises(ValueError, match="sets spatial_threshold of method 'sttm'"):
        floc.compress(np.ones((2, 2, 2, 2)), budget=3, method="sttm", spatial_threshold=0.5)


def test_merges_equal_tokens_and_keeps_zero_tokens() -> None:
    equal = floc.compress(np.ones((5, 8, 8, 3)), method="sttm")
    assert equal.indices.tolist() == [y * 8 + x for y in (0, 2, 4, 6) for x in (0, 2, 4, 6)]
    zeros = floc.compress(np.zeros((5, 8, 8, 3)), method="sttm")
    assert len(zeros) == 320
    assert np.isfinite(zeros.features).all()
    assert len(floc.compress(np.zeros((5, 8, 8, 3)), budget=320, method="sttm")) == 320


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_and_layout_do_not_change_the_result(dtype: torch.dtype) -> None:
    tokens = torch.from_numpy(make_tokens(9, 7, 8, dim=32, shot_frames=4)).to(dtype)
    scattered = tokens.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    assert not scattered.is_contiguous()
    kept = floc.compress(scattered, ratio=1 / 4, method="sttm")
    plain = floc.compress(tokens.float(), ratio=1 / 4, method="sttm")
    assert kept.indices.tolist() == plain.indices.tolist()
    assert kept.features.dtype == dtype
    np.testing.assert_allclose(kept.features.float(), plain.features, atol=1e-6, rtol=2**-8)


def test_tiles_compare_frames_across_their_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(17, 7, 6, dim=32, shot_frames=5, dtype=np.float32)
    whole = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.8)
    monkeypatch.setattr(frames, "CPU_BYTES", 3 * 7 * 6 * 32 * 4)
    parts = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.8)
    np.testing.assert_array_equal(parts.indices, whole.indices)
    np.testing.assert_allclose(parts.features, whole.features, atol=1e-6)
