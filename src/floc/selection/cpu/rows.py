"""Operations on rows of tokens in any float format, compiled: normalize, sum by cluster, cosines of pairs.

Tokens often come as fp16 or bf16 and are processed in float32. Each function converts one row at a time into a buffer
that stays in the first-level cache, so it makes no float32 copy of all tokens unless that is the result.
numba has no fp16 or bf16 on CPUs: fp16 is passed as its bits in uint16, bf16 as its bits in int16.
"""

import numba as nb
import numpy as np
import torch
from numba.extending import overload, register_jitable

# the compiler may reorder sums over a row, but must respect NaN and infinity
_FAST_SUMS = {"reassoc", "nsz", "contract"}


def view_bits(tokens: torch.Tensor) -> np.ndarray:
    """Return [n, D] tokens as an array that the compiled functions read, without a copy if device and dtype allow."""
    tokens = tokens.detach().cpu().contiguous()
    if tokens.dtype == torch.float16:
        return tokens.numpy().view(np.uint16)
    if tokens.dtype == torch.bfloat16:
        return tokens.view(torch.int16).numpy()
    return (tokens if tokens.dtype in (torch.float32, torch.float64) else tokens.float()).numpy()


def _widen(row, out):
    raise NotImplementedError("compiled code only")


@overload(_widen, jit_options={"nogil": True})
def _widen_overload(row, out):
    """Convert `row` from any format to float32 in `out`."""
    if row.dtype == nb.types.uint16:

        def fp16(row, out):
            word = out.view(np.uint32)
            for j in range(row.shape[0]):
                half = np.uint32(row[j])
                word[j] = np.uint32((half & np.uint32(0x8000)) << np.uint32(16)) | np.uint32(
                    (half & np.uint32(0x7FFF)) << np.uint32(13)
                )
            for j in range(row.shape[0]):
                # one exact product corrects the exponent, of subnormals as well
                out[j] = out[j] * np.float32(2.0**112)

        return fp16
    if row.dtype == nb.types.int16:

        def bf16(row, out):
            word = out.view(np.uint32)
            for j in range(row.shape[0]):
                word[j] = np.uint32(np.uint32(np.uint16(row[j])) << np.uint32(16))

        return bf16

    def cast(row, out):
        for j in range(row.shape[0]):
            out[j] = np.float32(row[j])

    return cast


@register_jitable
def _compute_length(row):
    """Return the length of a row, also if its squares overflow or underflow float32."""
    total = np.float32(0)
    for j in range(row.shape[0]):
        total += row[j] * row[j]
    if np.float32(1e-30) < total < np.float32(1e30):
        return np.sqrt(np.float64(total))
    wide = np.float64(0)
    for j in range(row.shape[0]):
        wide += np.float64(row[j]) * np.float64(row[j])
    return np.sqrt(wide)


@register_jitable
def _load_unit(source, i, out):
    """Write row i of `source` to `out`, scaled to length 1 (a zero row stays zero), and return its length."""
    _widen(source[i], out)
    length = _compute_length(out)
    if length > 1e-30:
        inverse = np.float32(1 / length)
        for j in range(out.shape[0]):
            out[j] *= inverse
    elif length > 0:  # the inverse would overflow float32
        for j in range(out.shape[0]):
            out[j] = np.float32(np.float64(out[j]) / length)
    return length


@nb.njit(nogil=True, cache=True, fastmath=_FAST_SUMS)
def normalize(source, out, lengths, start, stop):
    """Write rows start..stop of `source`, scaled to length 1, to `out`, and their lengths to `lengths`."""
    for i in range(start, stop):
        lengths[i] = _load_unit(source, i, out[i])


@nb.njit(nogil=True, cache=True, fastmath=_FAST_SUMS)
def sum_by_cluster(source, cluster, unit, out):
    """Add to out[c] the rows of cluster c, each scaled to length 1 if `unit`."""
    row = np.empty(source.shape[1], np.float32)
    for i in range(source.shape[0]):
        if unit:
            _load_unit(source, i, row)
        else:
            _widen(source[i], row)
        target = out[cluster[i]]
        for j in range(row.shape[0]):
            target[j] += row[j]


@register_jitable
def _dot_and_square(a, b):
    """Return a . b and a . a."""
    dot, square = np.float32(0), np.float32(0)
    for c in range(a.shape[0]):
        dot += a[c] * b[c]
        square += a[c] * a[c]
    return dot, square


@nb.njit(nogil=True, cache=True, fastmath=_FAST_SUMS)
def compute_cosines(left, i, right, j, out):
    """Set out[e] to the cosine of row i[e] of `left` and row j[e] of `right`; fastest if equal j are adjacent."""
    a = np.empty(left.shape[1], np.float32)
    b = np.empty(right.shape[1], np.float32)
    loaded = -1
    for e in range(i.shape[0]):
        if j[e] != loaded:
            loaded = j[e]
            _load_unit(right, loaded, b)
        _widen(left[i[e]], a)
        dot, square = _dot_and_square(a, b)
        if np.float32(1e-30) < square < np.float32(1e30):
            out[e] = dot / np.sqrt(square)
        else:  # the squares overflow or underflow float32
            _load_unit(left, i[e], a)
            out[e] = _dot_and_square(a, b)[0]
