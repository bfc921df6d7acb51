"""Compress the tokens of a video: `python examples/compress_tokens.py`."""

import torch

import floc


def main() -> None:
    """Keep one token in eight of 64 frames of 6 x 10 tokens, and print what was kept."""
    # Eight still scenes of eight frames. Your tokens come from a vision encoder: [T, H, W, D] or [T, N, D].
    tokens = torch.randn(8, 6, 10, 256).repeat_interleave(8, 0)
    kept = floc.compress(tokens, ratio=1 / 8)
    print(f"kept {len(kept)} of {kept.n} tokens, coverage {kept.coverage:.3f}")
    for t, y, x in kept.positions[:3].tolist():
        print(f"frame {t}, row {y}, column {x}")
    smaller = kept.at(ratio=1 / 32)  # from the same order, without computation
    print(f"at 1/32: {len(smaller)} tokens, coverage {smaller.coverage:.3f}")


if __name__ == "__main__":
    main()
