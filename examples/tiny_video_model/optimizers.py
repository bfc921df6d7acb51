"""Optimizers for the training: Muon for matrices, AdamW for all else."""

from __future__ import annotations

from collections.abc import Iterable

import torch

MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
MATRIX_DECAY = 0.05
MOMENTUM = 0.95
WARM_UP = 50  # steps
FALL = 0.4  # the rates fall in this last share of the time
# of the polynomial that moves all singular values towards 1 (Jordan and others, 2024)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon:
    """Momentum whose updates are made orthogonal; matrices of one shape are computed together.

    Args:
        matrices: Weights with two dimensions.
    """

    def __init__(self, matrices: Iterable[torch.Tensor]):
        groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for matrix in matrices:
            groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros_like(torch.stack(group)) for group in self._groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Change the matrices by one step."""
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradients = torch.stack(
                [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in group]
            )
            momentum.lerp_(gradients, 1 - MOMENTUM)
            update = _make_orthogonal(gradients.lerp_(momentum, MOMENTUM))
            rows, columns = group[0].shape
            torch._foreach_mul_(group, 1 - rate * MATRIX_DECAY)
            torch._foreach_add_(
                group, list(update.to(group[0].dtype).unbind()), alpha=-rate * max(1, rows / columns) ** 0.5
            )


def _make_orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices [N, rows, columns] with the same singular vectors, and singular values near 1."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizers:
    """Muon for the matrices of a module's layers, AdamW for all else; rates rise, stay, and fall.

    Args:
        module: Whose weights are trained.
        others: More weights.
        rate: Factor of all learning rates.
    """

    def __init__(self, module: torch.nn.Module, others: Iterable[torch.nn.Parameter] = (), rate: float = 1.0):
        named = list(module.named_parameters())
        matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
        rest = [weight for name, weight in named if weight.ndim != 2 or "embed" in name] + list(others)
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(rest, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self._weights = matrices + rest
        self._steps, self._rate = 0, rate

    def clear(self) -> None:
        """Remove all gradients."""
        for weight in self._weights:
            weight.grad = None

    def step(self, progress: float) -> None:
        """Take a step; `progress` is the share of the time that has passed."""
        self._steps += 1
        factor = self._rate * min(1, self._steps / WARM_UP) * min(1, (1 - progress) / FALL + 0.01)
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = OTHER_RATE * factor
        self._adam.step()
        self._muon.step(MATRIX_RATE * factor)
