"""How programs that run at once meet: by words in memory that carry a stamp in their lowest bits.

Who sees this step's stamp has this step's word, so there are no locks, no fences, and nothing to reset. Two buffers
suffice, as nobody writes a step's words before everybody has read those of the step before. Where words are stored
plainly, this relies on what all NVIDIA GPUs do and the memory model of PTX does not say: that a store of 64 bits
arrives whole, and in the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63))  # below any word


@triton.jit
def wait_for(words, present, stamp):
    """Wait until all words carry the stamp.

    They are to be read once more after that: threads may hold copies of a tensor that each loaded for itself, at a
    moment of its own, and only one of the copies is looked at here.
    """
    missing = 1
    while missing > 0:
        word = tl.load(words, mask=present, other=0, volatile=True)
        missing = tl.sum((present & ((word & 3) != stamp)).to(tl.int32), 0)
