"""The methods of 2025 and 2026 by their definitions: plain numpy in float64, with loops, written from the descriptions.

Tokens are `x`, [T, N, D]; flat indices are t * N + p. A method that selects returns sorted indices, or the order of its
picks; a method that merges returns rows (index, vector) sorted by index.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

Rows = list[tuple[int, np.ndarray]]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(np.linalg.norm(a), 1e-8) / max(np.linalg.norm(b), 1e-8))


def unit(x: np.ndarray, least: float = 1e-12) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), least)


def list_similarities(x: np.ndarray) -> dict[tuple[int, int], float]:
    """Return the cosine of each token but the first frame's with the same cell of the frame before."""
    t, n, _ = x.shape
    return {(i, p): cosine(x[i, p], x[i - 1, p]) for i in range(1, t) for p in range(n)}


def sort_down(values: list[float]) -> list[int]:
    """Return places by descending value, the first on ties."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def evs(x: np.ndarray, pruning_rate: float) -> list[int]:
    t, n, _ = x.shape
    count = max(n, math.trunc(t * n * (1 - pruning_rate)))
    similarity = list_similarities(x)
    change = [255.0 if i < n else 1 - similarity[i // n, i % n] for i in range(t * n)]
    return sorted(sort_down(change)[:count])


def dtd(x: np.ndarray, threshold: float, relative: bool, difference: np.ndarray | None) -> list[int]:
    t, n, _ = x.shape
    similarity, kept = list_similarities(x), list(range(n))
    for i in range(1, t):
        if relative:
            likeness = [similarity[i, p] if difference is None else -difference[i, p] for p in range(n)]
            dropped = sort_down(likeness)[: math.trunc(n * threshold)]
        elif difference is None:
            dropped = [p for p in range(n) if similarity[i, p] > threshold]
        else:
            dropped = [p for p in range(n) if difference[i, p] < threshold]
        kept += [i * n + p for p in range(n) if p not in dropped]
    return kept


def vidcom2(x: np.ndarray, base_scale: float, variant: str) -> list[int]:
    t, n, d = x.shape
    variance = x.reshape(-1, d).var(0)
    channels = sorted(range(d), key=lambda c: (variance[c], c))[: max(1, d // 2)]
    u = unit(x[:, :, sorted(channels)])

    def compare(squared: np.ndarray) -> np.ndarray:
        return sum(np.exp(-squared / (2 * a)) for a in (1 / 8, 1 / 4, 1 / 2, 1, 2))

    v = compare(((u - u.mean((0, 1))) ** 2).sum(-1))
    f = compare(((u - u.mean(1)[:, None]) ** 2).sum(-1))
    z = -v.mean(1)
    share = softmax((z - z.max()) / 0.01)
    kept: list[int] = []
    score = (v + f).ravel()
    for i in range(t):
        scale = min(1.0, base_scale * (1 + share[i] - share.mean()))
        count = min(n, max(1, round(scale * n)))
        kept += [i * n + p for p in sort_down((-score[i * n : i * n + n]).tolist())[:count]]
    if variant == "vllm":
        total = max(t, min(math.trunc(t * n * base_scale), t * n))
        others = [i for i in range(t * n) if i not in kept]
        kept = sorted(kept, key=lambda i: (score[i], -i))[:total]
        kept += sorted(others, key=lambda i: (score[i], i))[: total - len(kept)]
    return sorted(kept)


def vcast(x: np.ndarray, retain_ratio: float, min_k: int, temperature: float, strict: bool) -> list[int]:
    t, n, _ = x.shape
    if strict and t == 1:
        return list(range(n))
    g = unit(x.mean(1), 1e-6)
    curvature = np.ones(t)
    for i in range(1, t - 1):
        curvature[i] = 1 - float(unit(g[i] - g[i - 1], 1e-6) @ unit(g[i + 1] - g[i], 1e-6))
    least = min(min_k, n)
    total = max(min(max(1, round(t * n * retain_ratio)), t * n), t * least)
    raw = softmax(curvature / temperature) * (total - t * least)
    counts = [least + min(math.floor(share), n - least) for share in raw]
    by_fraction = sort_down([share - math.floor(share) for share in raw])
    while sum(counts) < total:
        free = [i for i in by_fraction if counts[i] < n]
        if strict:
            counts[free[0]] += 1
        else:
            for i in free[: total - sum(counts)]:
                counts[i] += 1
    kept: list[int] = []
    for i in range(t):
        length = np.linalg.norm(x[i], axis=1)
        spread = (length - length.min()) / (length.max() - length.min() + 1e-6)
        score = [1 - cosine(x[i, p], g[i]) + spread[p] for p in range(n)]
        kept += [i * n + p for p in sort_down(score)[: counts[i]]]
    return sorted(kept)


def find_centres(vectors: np.ndarray, count: int, neighbours: int) -> list[int]:
    """Return the centres of DPC-kNN, the best first."""
    distance = np.array([[np.linalg.norm(a - b) for b in vectors] for a in vectors]) / math.sqrt(vectors.shape[1])
    density = [math.exp(-np.mean(np.sort(row)[:neighbours] ** 2)) for row in distance]
    score = []
    for i in range(len(vectors)):
        # equal densities: by index
        denser = [j for j in range(len(vectors)) if (density[j], -j) > (density[i], -i)]
        score.append(density[i] * (min(distance[i, j] for j in denser) if denser else distance.max()))
    return sort_down(score)[:count]


def assign(vectors: np.ndarray, centres: list[int]) -> list[int]:
    """Return the place, among the centres, of the one nearest to each vector."""
    places = [int(np.argmin([np.linalg.norm(v - vectors[c]) for c in centres])) for v in vectors]
    for place, centre in enumerate(centres):
        places[centre] = place
    return places


def cut_segments(g: np.ndarray, threshold: float, least: int) -> list[range]:
    """Cut frames where the cosine of neighbours is low, into at least `least` segments, if there are enough frames."""
    likeness = [cosine(g[i], g[i + 1]) for i in range(len(g) - 1)]
    cuts = {i for i, value in enumerate(likeness) if value < threshold}
    for i in sorted(range(len(likeness)), key=lambda i: (likeness[i], i)):
        if len(cuts) + 1 < least:
            cuts.add(i)
    bounds = [0, *(i + 1 for i in sorted(cuts)), len(g)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def pick_diverse(x: np.ndarray, weight: np.ndarray, count: int, repeats: bool) -> list[int]:
    """Pick tokens of one frame, each the farthest from the picks before."""
    n = len(x)
    # each pair once, so that ties are ties
    likeness = np.array([[cosine(x[min(i, j)], x[max(i, j)]) for j in range(n)] for i in range(n)])
    distance = (1 - likeness) * weight
    picks = [int(np.argmax(np.sort(distance, axis=0)[1 if n > 1 else 0]))]
    while len(picks) < count:
        farness = distance[picks].min(0)
        if not repeats:
            farness[picks] = -np.inf
        picks.append(int(farness.argmax()))
    return sorted(set(picks))


def flashvid(
    x: np.ndarray,
    attn: np.ndarray | None,
    *,
    retention_ratio: float,
    expansion: float,
    alpha: float,
    token_selection_method: str,
    temporal_threshold: float,
    segment_threshold: float,
    min_segment_num: int,
    strict: bool,
) -> Rows:
    n, means = x.shape[1], x.mean(1)
    quota = math.ceil(n * retention_ratio * expansion)
    chosen = math.ceil(quota * alpha)
    merged = quota - chosen
    rows: Rows = []
    for segment in cut_segments(means, segment_threshold, min_segment_num):
        selected: dict[int, list[int]] = {}
        for i in segment:
            method = "div" if attn is None else token_selection_method
            if method == "attn":
                selected[i] = sorted(sort_down(attn[i].tolist())[:chosen])
                continue
            weight = np.ones(n) if method == "div" else 1e6 * attn[i]
            if method == "attn_div_v2":
                weight = weight * np.mean([x[i] @ means[u] for u in segment], axis=0)
            selected[i] = pick_diverse(x[i], weight, chosen, strict and method == "attn_div_v2")
        rows += [(i * n + p, x[i, p]) for i in segment for p in selected[i]]
        rows += merge_segment(
            x, segment, selected, merged=merged, quota=quota, threshold=temporal_threshold, strict=strict
        )
    return sorted(rows, key=lambda row: (row[0], row[1][0]))


def merge_segment(
    x: np.ndarray,
    segment: range,
    selected: dict[int, list[int]],
    *,
    merged: int,
    quota: int,
    threshold: float,
    strict: bool,
) -> Rows:
    """Merge the tokens of one segment that were not selected, over time and then in each frame."""
    n = x.shape[1]
    parent: dict[tuple[int, int], tuple[int, int]] = {}
    best = {(i, p): -1.0 for i in segment for p in range(n)}
    for i in segment[1:]:
        free = [q for q in range(n) if q not in selected[i - 1]]
        for p in range(n):
            if p not in selected[i] and free:
                likeness = [cosine(x[i, p], x[i - 1, q]) for q in free]
                parent[i, p] = (i - 1, free[int(np.argmax(likeness))])
                best[i, p] = max(likeness)
    removable = len(segment) * (n - quota)
    if len(segment) * n - sum(value > threshold for value in best.values()) < len(segment) * quota:
        threshold = max(sorted(best.values(), reverse=True)[removable - 1] if removable else 2.0, -1 + 1e-6)
    up = {token for token in best if best[token] > threshold}
    total = {(i, p): x[i, p].copy() for i in segment for p in range(n)}
    size, children = dict.fromkeys(total, 1), dict.fromkeys(total, 0)
    for i in reversed(segment):
        for p in range(n):
            if (i, p) in up:
                total[parent[i, p]] += total[i, p]
                size[parent[i, p]] += size[i, p]
                children[parent[i, p]] += 1
    left: dict[int, list[int]] = {}
    for i in segment:
        left[i] = [p for p in range(n) if p not in selected[i] and (i, p) not in up]
        if strict and len(segment) == 1:
            left[i] = list(range(n))
    number = sum(map(len, left.values()))
    rows: Rows = []
    if not merged or not number:
        return rows
    ratio = merged * len(segment) / number
    for i in segment:
        vectors = [total[i, p] / (1 + children[i, p] if strict else size[i, p]) for p in left[i]]
        if ratio >= 1:
            rows += [(i * n + p, vector) for p, vector in zip(left[i], vectors, strict=True)]
        elif vectors:
            count = math.ceil(len(vectors) * ratio)
            centres = find_centres(np.array(vectors), count, min(count, 7))
            places = assign(np.array(vectors), centres)
            for place, centre in enumerate(centres):
                members = [vector for vector, other in zip(vectors, places, strict=True) if other == place]
                rows.append((i * n + left[i][centre], np.mean(members, axis=0)))
    return rows


def find_windows(x: np.ndarray, tau: float, longest: int) -> tuple[list[range], int]:
    """Return the windows of HoliTom, by trying every last window of every prefix, and the tokens that they remove."""
    t, n, _ = x.shape
    same = {key: value > tau for key, value in list_similarities(x).items()}
    best, last = [0] * t, [0] * t
    for end in range(t):
        best[end], last[end] = (best[end - 1] if end else 0), end
        for start in range(end - 1, max(-1, end - longest), -1):
            cells = sum(all(same[i, p] for i in range(start + 1, end + 1)) for p in range(n))
            gain = (best[start - 1] if start else 0) + cells * (end - start)
            if gain > best[end]:
                best[end], last[end] = gain, start
    windows, end = [], t - 1
    while end >= 0:
        windows.append(range(last[end], end + 1))
        end = last[end] - 1
    return windows[::-1], best[-1]


def blend(vectors: np.ndarray, count: int, k: int, beta: float) -> list[tuple[int, np.ndarray]]:
    """Merge vectors into `count` of them: places and merged vectors."""
    if not count:
        return []
    centres = sorted(find_centres(vectors, count, min(k, count)))
    places, merged = assign(vectors, centres), []
    for place, centre in enumerate(centres):
        others = [vectors[i] for i in range(len(vectors)) if places[i] == place and i != centre]
        mean = beta * vectors[centre] + (1 - beta) * np.mean(others, axis=0) if others else vectors[centre]
        merged.append((centre, mean))
    return merged


def holitom(
    x: np.ndarray,
    attn: np.ndarray | None,
    *,
    retain_ratio: float,
    tau: float,
    beta: float,
    k: int,
    max_window_size: int,
    contextual: float,
) -> Rows:
    t, n, _ = x.shape
    if attn is None:
        attn = np.array([softmax(frame @ frame.mean(0) / math.sqrt(x.shape[2])) for frame in x])
    same = {key: value > tau for key, value in list_similarities(x).items()}
    windows, reduced = find_windows(x, tau, max_window_size)
    ratio = min(1.0, retain_ratio / ((t * n - reduced) / (t * n)))
    rows: Rows = []
    for window in windows:
        static = [p for p in range(n) if len(window) > 1 and all(same[i, p] for i in window[1:])]
        if static:
            means = x[window.start : window.stop][:, static].mean(0)
            merged = blend(means, round(len(static) * ratio), k, beta)
            rows += [(window[0] * n + static[place], vector) for place, vector in merged]
        dynamic = [p for p in range(n) if p not in static]
        quota = math.ceil(len(dynamic) * ratio)
        dominant = round(quota * (1 - contextual))
        for i in window:
            top = [dynamic[j] for j in sort_down([attn[i, p] for p in dynamic])[:dominant]]
            rows += [(i * n + p, x[i, p]) for p in top]
            rest = [p for p in dynamic if p not in top]
            rows += [(i * n + rest[place], v) for place, v in blend(x[i, rest], quota - dominant, k, beta)]
    return sorted(rows, key=lambda row: row[0])


def cover(matrix: np.ndarray, weights: np.ndarray, k: int) -> list[int]:
    """Pick columns of [rows, n] greedily, every gain computed anew."""
    best, picks = np.zeros(len(matrix)), []
    for _ in range(k):
        gains = weights * np.maximum(matrix - best[:, None], 0).sum(0)
        gains[picks] = -1
        picks.append(int((gains >= gains.max() * (1 - 1e-12)).argmax()))
        best = np.maximum(best, matrix[:, picks[-1]])
    return picks


def mmtok(
    x: np.ndarray,
    query: np.ndarray | None,
    vision_features: np.ndarray | None,
    k: int,
    *,
    alpha: float,
    text_temperature: float,
    vision_temperature: float,
) -> list[int]:
    x = x.reshape(-1, x.shape[-1])
    y = unit(x if vision_features is None else vision_features.reshape(len(x), -1).astype(np.float64), 1e-8)
    weight = alpha if query is not None and len(query) else 1.0
    rows = [weight * softmax(y @ token / vision_temperature) / len(x) for token in y]
    if query is not None and len(query):
        z = unit(query.astype(np.float64), 1e-8)
        rows = [softmax(unit(x, 1e-8) @ token / text_temperature) / len(z) for token in z] + rows
    return cover(np.array(rows), np.ones(len(x)), k)


def cdpruner(x: np.ndarray, relevance: np.ndarray | None, k: int) -> list[int]:
    """Pick by the published recursion, in rounds."""
    x = unit(x.reshape(-1, x.shape[-1]), 1e-8)
    q = np.ones(len(x)) if relevance is None else relevance.ravel()
    kernel = q[:, None] * (x @ x.T) * q
    picks: list[int] = []
    while len(picks) < k:
        left = [i for i in range(len(x)) if i not in picks]
        volume, columns = {i: q[i] ** 2 for i in left}, []
        most = max(volume.values())
        while len(picks) < k and volume and max(volume.values()) >= 1e-6 * most:
            j = min(volume, key=lambda i: (-volume[i], i))
            root = math.sqrt(volume[j])
            column = {i: (kernel[j, i] - sum(c[j] * c[i] for c in columns)) / root for i in left}
            columns.append(column)
            del volume[j]
            for i in volume:
                volume[i] -= column[i] ** 2
            picks.append(j)
    return picks


def scope(x: np.ndarray, attn: np.ndarray | None, k: int, alpha: float) -> list[int]:
    x = unit(x.reshape(-1, x.shape[-1]))
    weights = np.ones(len(x)) if attn is None else attn.ravel() ** alpha
    return cover(x @ x.T, weights, k)


def visionzip(
    x: np.ndarray, attn: np.ndarray | None, metric: np.ndarray | None, *, dominant: int, contextual: int, strict: bool
) -> Rows:
    t, n, _ = x.shape
    metric = None if metric is None else metric.astype(np.float64)
    rows: Rows = []
    for i in range(t):
        salience = softmax(x[i] @ x[i].mean(0) / math.sqrt(x.shape[2])) if attn is None else attn[i]
        top = sorted(sort_down(salience.tolist())[:dominant])
        rest = [p for p in range(n) if p not in top]
        compared = x[i] if metric is None else metric.reshape(t, n, -1)[i]
        rows += [(i * n + p, x[i, p]) for p in top]
        if not contextual or not rest:
            continue
        targets = rest[:: max(1, len(rest) // contextual)][:contextual]
        members: dict[int, list[int]] = {p: [] for p in targets}
        for p in rest:
            if p not in members:
                members[targets[int(np.argmax([cosine(compared[p], compared[q]) for q in targets]))]].append(p)
        for p, others in members.items():
            vector = x[i, p] + x[i, others].mean(0) if others else x[i, p]
            rows.append((i * n + p, vector if strict or not others else vector / 2))
    return sorted(rows, key=lambda row: row[0])


def framefusion(x: np.ndarray, cost: float, similarity_lower_bound: float) -> Rows:
    t, n, _ = x.shape
    similarity = list_similarities(x)
    limit = 1 - (28 * cost) / 28
    alike = [key for key in similarity if similarity[key] >= similarity_lower_bound]
    if len(alike) / (t * n) >= limit:
        alike = sorted(similarity, key=lambda key: (-similarity[key], key))[: math.trunc(limit * t * n)]
    rows: Rows = []
    for p in range(n):
        run = [x[0, p]]
        first = 0
        for i in range(1, t):
            if (i, p) in set(alike):
                run.append(x[i, p])
            else:
                rows.append((first * n + p, np.mean(run, axis=0)))
                run, first = [x[i, p]], i
        rows.append((first * n + p, np.mean(run, axis=0)))
    return sorted(rows, key=lambda row: row[0])
