"""A device that is not there: tensors on the CPU that claim to be on a GPU, and refuse to be mixed with others.

Operations run on the CPU. As on a GPU, an operation on tensors of both devices fails, except with single numbers, and
numpy cannot read a tensor that was not copied. Every operation for which a GPU's caller has to wait is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
READS_ONE = (aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default)
# the size of the result has to be known
HAS_UNKNOWN_SIZE = (
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
)


class SimulatedTensor(torch.Tensor):
    """Wraps a CPU tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> SimulatedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",  # neither the CPU nor a device that torch would look for
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def __repr__(self) -> str:
        return f"SimulatedTensor({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of a SimulatedDevice")


class SimulatedDevice(TorchDispatchMode):
    """Runs operations on `SimulatedTensor`, and counts those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()  # by operation
        self.fetched_bytes = 0  # copied to the CPU
        self.operations = 0  # on the device

    def __enter__(self) -> SimulatedDevice:
        self._originals = torch.cuda._lazy_init, torch.tensor
        # torch.tensor makes a tensor on its device without an operation that could be seen
        torch.cuda._lazy_init, torch.tensor = lambda: None, self._make_tensor
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.cuda._lazy_init, torch.tensor = self._originals

    def _make_tensor(self, data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made = self._originals[1](data, **options)
        return made if device is None else made.to(device)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device."""
        return SimulatedTensor(tensor.clone())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        here = [isinstance(x, SimulatedTensor) for x in tensors]
        target = kwargs.get("device")  # "meta": that of one of our tensors
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        makes_ours = any(here)
        if func in COPIES:
            if func is aten.copy_.default:
                makes_ours = here[0]
            elif target is not None:
                makes_ours = torch.device(target).type in (DEVICE.type, "meta")
            if any(here) and not (makes_ours and all(here)) and not makes_ours:
                self.waits["copy to the CPU"] += 1
                self.fetched_bytes += tensors[-1].numel() * tensors[-1].element_size()
        elif not tensors:
            makes_ours = target is not None and torch.device(target).type in (DEVICE.type, "meta")
        elif any(here):
            mixed = [x for x, ours in zip(tensors, here, strict=True) if not ours and x.dim() > 0]
            # an index may be on the CPU, as for a real device
            if mixed and func not in (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default):
                raise RuntimeError(f"{func}: tensors on two devices, {[tuple(x.shape) for x in tensors]}")
        if any(here):
            self.operations += 1
            if func in READS_ONE:
                self.waits["read one number"] += 1
            elif func in HAS_UNKNOWN_SIZE or (func is aten.index.Tensor and _has_mask(args[1])):
                self.waits[str(func)] += 1
            elif func in (aten.index_put_.default, aten._index_put_impl_.default) and _has_mask(args[1]):
                self.waits["index_put_ with a mask"] += 1
        plain_args, plain_kwargs = tree_map(_unwrap, (args, kwargs))
        result = func(*plain_args, **plain_kwargs)
        if not makes_ours:
            return result
        wrapped = tree_map(lambda x: SimulatedTensor(x) if isinstance(x, torch.Tensor) else x, result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if any(here) else wrapped


def _unwrap(x: Any) -> Any:
    return x.inner if isinstance(x, SimulatedTensor) else x


def _has_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)
