"""STTM against the published program's outputs, and against its definition with boxes and loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

import floc
from floc.methods import tiles
from floc.synthetic import film


class Node(NamedTuple):
    t: int
    box: tuple[int, int, int, int]  # y0, x0, y1, x1
    mean: np.ndarray


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))


def pairs(length: int) -> list[list[int]]:
    """{0, 1}, {2, 3}, ...; of an odd number the first is alone."""
    odd = length % 2
    return [[0]] * odd + [[i, i + 1] for i in range(odd, length, 2)]


def quadtree(frame: np.ndarray, t: int, threshold: float, root_level: int, sound: bool) -> list[Node]:
    h, w, _ = frame.shape
    levels = [{(y, x): Node(t, (y, x, y + 1, x + 1), frame[y, x]) for y in range(h) for x in range(w)}]
    children: list[dict] = [{}]
    while 2 not in (h, w) and (h, w) != (1, 1):
        fine, coarse, below = levels[-1], {}, {}
        for i, rows in enumerate(pairs(h)):
            for j, columns in enumerate(pairs(w)):
                below[i, j] = [(y, x) for y in rows for x in columns]
                mine = [fine[each] for each in below[i, j]]
                boxes = np.array([each.box for each in mine])
                box = (*boxes[:, :2].min(0).tolist(), *boxes[:, 2:].max(0).tolist())
                coarse[i, j] = Node(t, box, np.mean([each.mean for each in mine], 0))
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
        if all(cosine(node.mean, levels[level - 1][each].mean) >= threshold for each in tested):
            return [node]
        return [each for slot in slots for each in visit(level - 1, slot)]

    found = [node for cell in levels[root] for node in visit(root, cell)]
    return sorted(found, key=lambda node: node.box[0] * frame.shape[1] + node.box[1])


def holds(a: Node, b: Node) -> bool:
    return a.box[0] <= b.box[0] and a.box[1] <= b.box[1] and a.box[2] >= b.box[2] and a.box[3] >= b.box[3]


def plainly(
    tokens: np.ndarray, spatial: float, temporal: float, root_level: int = 1, sound: bool = False
) -> tuple[list[int], np.ndarray, list[int]]:
    """Positions, means and represents, step by step in float64."""
    tokens = tokens.astype(np.float64)
    _, h, w, _ = tokens.shape
    nodes = [node for t, frame in enumerate(tokens) for node in quadtree(frame, t, spatial, root_level, sound)]
    alike = [
        (a, b)
        for a, one in enumerate(nodes)
        for b, other in enumerate(nodes)
        if other.t == one.t + 1
        and (holds(one, other) or holds(other, one))
        and temporal > 0
        and cosine(one.mean, other.mean) >= temporal
    ]
    group = list(range(len(nodes)))
    while True:
        new = group.copy()
        for a, b in alike:
            low = min(group[a], group[b])
            new[a], new[b] = min(new[a], low), min(new[b], low)
        group = [new[each] for each in new]
        settled = [group[each] for each in group] == group
        if settled and (not sound or all(group[a] == group[b] for a, b in alike)):
            break
    roots = sorted(set(group))
    positions = [nodes[each].t * h * w + nodes[each].box[0] * w + nodes[each].box[1] for each in roots]
    means = [np.mean([node.mean for node, mine in zip(nodes, group, strict=True) if mine == each], 0) for each in roots]
    represents = np.empty(tokens.shape[:3], np.int64)
    for node, mine in zip(nodes, group, strict=True):
        y0, x0, y1, x1 = node.box
        represents[node.t, y0:y1, x0:x1] = roots.index(mine)
    return positions, np.array(means), represents.ravel().tolist()


@pytest.mark.parametrize("case", "abc")
def test_merges_what_the_published_program_merges(read_golden, case: str) -> None:
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
        mine = kept.represents == place
        assert (t[mine] == frame).all()
        assert [y[mine].min(), x[mine].min(), y[mine].max() + 1, x[mine].max() + 1] == box


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
def test_merges_by_the_definition(t: int, h: int, w: int, root_level: int, sound: bool) -> None:
    tokens = film(t, h, w, dim=24, seed=h * w, shot_frames=4, noise=0.25, dtype=np.float32)
    sizes = set()
    for spatial, temporal in [(0.8, 0.75), (0.9, 0.85), (0.95, 0.9), (0.85, 0.0), (-1.0, 1e-6)]:
        positions, means, represents = plainly(tokens, spatial, temporal, root_level, sound)
        options = dict(spatial_threshold=spatial, temporal_threshold=temporal, root_level=root_level, sound=sound)
        kept = floc.compress(tokens, method="sttm", **options)
        assert kept.indices.tolist() == positions
        np.testing.assert_allclose(kept.features, means, atol=1e-5)
        assert kept.represents.tolist() == represents
        sizes.add(len(kept))
    assert len(sizes) > 1


def test_the_published_loop_can_leave_connected_nodes_apart() -> None:
    tokens = np.zeros((2, 4, 8, 3), np.float32)  # root cells of 2 x 2 would merge all; the first frame's do not
    tokens[0, :, :, :2] = np.where(np.indices((4, 8)).sum(0)[..., None] % 2, [1, 0.4], [0.4, 1])
    tokens[1, :, :, :2] = 1
    options = dict(spatial_threshold=0.99, temporal_threshold=0.8, method="sttm", root_level=0)
    published, sound = (floc.compress(tokens, **options, sound=each) for each in (False, True))
    assert len(sound) == 8  # every root cell of the second frame holds four tokens of the first
    assert len(published) == 32  # each joins the first of them only


def test_a_missing_child_counts_as_the_top_left_cell_unless_sound() -> None:
    tokens = np.zeros((1, 3, 5, 2), np.float32)
    tokens[..., 0] = 1
    tokens[0, 0, 0] = [0, 1]
    published, sound = (
        floc.compress(tokens, method="sttm", temporal_threshold=0.0, root_level=0, sound=each) for each in (False, True)
    )
    assert len(sound) == 6  # the root is 2 x 3
    assert len(published) == 9  # of the border's four other cells, the three with two children fall apart


@pytest.mark.parametrize("shape", [(70, 3, 4), (12, 8, 8), (10, 7, 9)])
@pytest.mark.parametrize("sound", [False, True])
def test_a_budget_reports_the_thresholds_that_give_its_answer(shape: tuple[int, int, int], sound: bool) -> None:
    tokens = film(*shape, dim=32, seed=2, shot_frames=9, dtype=np.float32)
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


def test_the_whole_budget_changes_nothing() -> None:
    tokens = np.ones((3, 6, 6, 5)) / 3
    kept = floc.compress(tokens, ratio=1, method="sttm")
    np.testing.assert_array_equal(kept.features, tokens.reshape(108, 5))
    thresholds = {name: kept.settings[name] for name in ("spatial_threshold", "temporal_threshold")}
    assert len(floc.compress(tokens, method="sttm", **thresholds)) == 108


def test_less_than_it_can_do_is_an_error_that_names_the_floor_or_its_fewest() -> None:
    tokens = film(20, 6, 6, dim=32, dtype=np.float32)
    with pytest.raises(ValueError, match=r"at least \d+ of 720 tokens.*got a budget of 2.*nearest=True"):
        floc.compress(tokens, budget=2, method="sttm")
    kept = floc.compress(tokens, budget=2, method="sttm", nearest=True)
    assert 2 < len(kept) < 40
    assert kept.settings["spatial_threshold"] == -1


def test_options_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="root_level must be 0"):
        floc.compress(np.ones((2, 2, 2, 2)), method="sttm", root_level=-1)
    with pytest.raises(ValueError, match="sets spatial_threshold of method 'sttm'"):
        floc.compress(np.ones((2, 2, 2, 2)), budget=3, method="sttm", spatial_threshold=0.5)


def test_equal_tokens_become_one_per_root_cell_and_zeros_stay() -> None:
    equal = floc.compress(np.ones((5, 8, 8, 3)), method="sttm")
    assert equal.indices.tolist() == [y * 8 + x for y in (0, 2, 4, 6) for x in (0, 2, 4, 6)]
    zeros = floc.compress(np.zeros((5, 8, 8, 3)), method="sttm")
    assert len(zeros) == 320
    assert np.isfinite(zeros.features).all()
    assert len(floc.compress(np.zeros((5, 8, 8, 3)), budget=320, method="sttm")) == 320


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_and_layout_merges_as_float32_does(dtype: torch.dtype) -> None:
    tokens = torch.from_numpy(film(9, 7, 8, dim=32, shot_frames=4)).to(dtype)
    scattered = tokens.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    assert not scattered.is_contiguous()
    kept = floc.compress(scattered, ratio=1 / 4, method="sttm")
    plain = floc.compress(tokens.float(), ratio=1 / 4, method="sttm")
    assert kept.indices.tolist() == plain.indices.tolist()
    assert kept.features.dtype == dtype
    np.testing.assert_allclose(kept.features.float(), plain.features, atol=1e-6, rtol=2**-8)


def test_parts_of_a_video_meet_at_their_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = film(17, 7, 6, dim=32, shot_frames=5, dtype=np.float32)
    whole = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.8)
    monkeypatch.setattr(tiles, "CPU_BYTES", 3 * 7 * 6 * 32 * 4)
    parts = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.8)
    np.testing.assert_array_equal(parts.indices, whole.indices)
    np.testing.assert_allclose(parts.features, whole.features, atol=1e-6)
