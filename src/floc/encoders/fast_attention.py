"""Fast attention in the vision towers of transformers, with the results of the model's own.

Many vision towers attend within windows: frames, or parts of them. With the implementation `sdpa`, transformers calls
the kernel once for every window of every layer, and a GPU waits for the calls. If the name of the implementation
contains "flash", the tower makes one call for all windows and passes their boundaries. While a tower runs, its config
names such an implementation, which attends to all windows of one length at once.
"""

import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

NAME = "floc_flash_windows"  # in the registry of transformers
OWN = "sdpa"  # the implementation whose towers are made faster
MOST_WINDOWS = 32_768  # of one call: kernels number them in 16 bits
PATTERN_DEVICES = ("cpu",)  # where many calls on views are faster than few calls on copies
PACKED_ARGUMENTS = ("cu_seq_lens_k", "max_length_q", "max_length_k")

PackedKernel = Callable[[Sequence[torch.Tensor], torch.Tensor, int, float], torch.Tensor]


# ---- the towers of a model


def find_towers(base: Any) -> list[Any]:
    """Return the vision towers of a multimodal model that attend within windows: modules with a config of their own."""
    audio = base.get_encoder("audio")
    others = set() if audio is None or audio is base else set(audio.modules())
    modules = [module for module in base.modules() if module not in others]
    configs = {id(module.config) for module in modules if _takes_windows(module)}
    towers: list[Any] = []
    inside: set[Any] = set()
    for module in modules:  # parents come before their children
        if module not in inside and id(getattr(module, "config", None)) in configs:
            parts = set(module.modules())
            inside |= parts
            classes: set[Any] = {type(part) for part in parts}
            if not any(map(_builds_masks, classes)):
                towers.append(module)
    return towers


def _takes_windows(module: Any) -> bool:
    """Return whether a module attends within windows, and makes one call for all of them if asked for flash attention.

    A function in place of its forward may do anything; those of accelerate, which move weights, call the original.
    """
    is_replaced = "forward" in vars(module) and not hasattr(module, "_hf_hook")
    module_class: Any = type(module)
    return not is_replaced and _class_takes_windows(module_class)


@cache
def _class_takes_windows(module_class: Any) -> bool:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    forward: Any = inspect.unwrap(module_class.forward)
    names = set(forward.__code__.co_names) if hasattr(forward, "__code__") else set()
    if not {"is_flash_attention_requested", "ALL_ATTENTION_FUNCTIONS"} <= names:
        return False
    uses_registry = forward.__globals__["ALL_ATTENTION_FUNCTIONS"] is ALL_ATTENTION_FUNCTIONS
    return uses_registry and "cu_seqlens" in inspect.signature(forward).parameters


@cache
def _builds_masks(module_class: Any) -> bool:
    """Return whether modules of a class build attention masks, which depend on the name of the implementation."""
    forward: Any = inspect.unwrap(module_class.forward)
    return hasattr(forward, "__code__") and any(
        name.startswith("create_") and "mask" in name for name in forward.__code__.co_names
    )


# ---- switching


_calls: Counter[int] = Counter()  # that run now, by the id of the config that names fast attention
_lock = threading.Lock()
_towers: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()  # of models seen before


def _begin(config: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with _lock:
        if not _calls:
            ALL_ATTENTION_FUNCTIONS[NAME] = _get_uncompiled_attention()
        _calls[id(config)] += 1
        config._attn_implementation_internal = NAME  # the property would set it in configs inside, too


def _end(config: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with _lock:
        _calls[id(config)] -= 1
        if not _calls[id(config)]:
            if config._attn_implementation_internal == NAME:  # the user may have chosen another meanwhile
                config._attn_implementation_internal = OWN
            del _calls[id(config)]
            vars(_recent).clear()
        if not _calls:
            del ALL_ATTENTION_FUNCTIONS[NAME]


def _is_suitable(tower: Any, arguments: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Return whether a call of a tower can use fast attention; otherwise it runs as it always does."""
    config = tower.config
    if config._attn_implementation not in (OWN, NAME) or tower.training or torch.jit.is_tracing():
        return False
    returns_attention = arguments.get("output_attentions", getattr(config, "output_attentions", False))
    weight = next(tower.parameters(), None)
    return not returns_attention and weight is not None and weight.device.type in ("cpu", "cuda", "meta")


class FastVision:
    """Fast attention in the vision towers of a multimodal model.

    `use` is for calls of the towers inside a with block, `hook` for all calls until `unhook`. Both may be nested and
    used by several threads; the model and the registry are restored when the last use ends, also after an error.
    """

    def __init__(self, base: Any) -> None:
        if base not in _towers:
            _towers[base] = [weakref.ref(tower) for tower in find_towers(base)]
        self.towers = [tower for reference in _towers[base] if (tower := reference()) is not None]
        self.hooks: list[Any] = []
        self.running = threading.local()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Use fast attention inside the with block."""
        configs = [tower.config for tower in self.towers if _is_suitable(tower)]
        for config in configs:
            _begin(config)
        try:
            yield
        finally:
            for config in configs:
                _end(config)

    def hook(self) -> None:
        """Use fast attention in every call of the towers."""
        before, after = torch.compiler.disable(self._before), torch.compiler.disable(self._after)
        for tower in self.towers:
            self.hooks.append(tower.register_forward_pre_hook(before, with_kwargs=True))
            self.hooks.append(tower.register_forward_hook(after, always_call=True))

    def unhook(self) -> None:
        """Remove the hooks; may be called twice."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def _before(self, tower: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if _is_suitable(tower, kwargs):
            _begin(tower.config)
            vars(self.running).setdefault("configs", []).append(tower.config)

    def _after(self, tower: Any, *_: Any) -> None:
        configs = vars(self.running).get("configs", [])
        if configs and configs[-1] is tower.config:  # not if another hook failed before `_before`
            _end(configs.pop())


# ---- attention within windows


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a call: a pattern of lengths that repeats, or groups of windows of equal length."""

    pattern: tuple[int, ...] = ()
    groups: tuple[tuple[int, int], ...] = ()  # number and length of the windows of each length
    order: torch.Tensor | None = None  # [N] the patches in the order of the groups; None if there is a pattern
    inverse: torch.Tensor | None = None  # [N] the place of each patch in that order


@lru_cache(maxsize=4)
def group_windows(lengths: tuple[int, ...], device: torch.device) -> Windows:
    """Find what repeats in the lengths of consecutive windows.

    The windows of a pattern are strided views of the patches, without copies.

    >>> group_windows((2, 1, 2, 1), torch.device("cpu")).pattern
    (2, 1)
    """
    sizes = np.array([length for length in lengths if length])
    periods = (p for p in range(1, len(sizes) + 1) if len(sizes) % p == 0)
    period = next(p for p in periods if (sizes[p:] == sizes[:-p]).all())
    if period == 1 or device.type in PATTERN_DEVICES:
        return Windows(tuple(sizes[:period].tolist()))
    starts = sizes.cumsum() - sizes
    distinct, counts = np.unique(sizes, return_counts=True)
    order = np.concatenate([(starts[sizes == length, None] + np.arange(length)).ravel() for length in distinct])
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    groups = tuple(zip(counts.tolist(), distinct.tolist(), strict=True))
    return Windows((), groups, *(torch.from_numpy(index).to(device) for index in (order, inverse)))


_recent = threading.local()  # the boundaries that were seen last: all layers of a tower pass the same tensors


def _read_windows(bounds: torch.Tensor, device: torch.device) -> Windows:
    """Return the windows between boundaries; waits for the GPU once for every tensor, not in every layer."""
    seen: list[tuple[torch.Tensor, int, Windows]] = vars(_recent).setdefault("windows", [])
    version = 0 if bounds.is_inference() else bounds._version
    for known, known_version, windows in seen:
        if known is bounds and known_version == version:
            return windows
    windows = group_windows(tuple(bounds.diff().tolist()), device)
    seen[:] = [*seen[-1:], (bounds, version, windows)]
    return windows


@cache
def _get_uncompiled_attention() -> Any:
    """Return `attend_windows`, out of torch.compile's reach; as a decorator, this would load the compiler on import."""
    return torch.compiler.disable(attend_windows)


def attend_windows(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Attend within windows: an attention function of transformers.

    Args:
        query, key, value: [1, heads, N, D], of all windows one after the other.
        **kwargs: `cu_seq_lens_q`, the boundaries of the windows, and the arguments of the model's own attention.

    Returns:
        [1, N, heads, D], and no attention weights.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    own = ALL_ATTENTION_FUNCTIONS[OWN]
    bounds = kwargs.pop("cu_seq_lens_q", None)
    key_bounds, *_ = (kwargs.pop(name, None) for name in PACKED_ARGUMENTS)
    if bounds is None:  # attention without windows
        return own(module, query, key, value, attention_mask, **kwargs)
    if len(query) != 1 or attention_mask is not None or key_bounds is not bounds:
        problem = f"{type(module).__name__} packs its windows in a way that fast vision does not know"
        raise RuntimeError(f"{problem}; pass fast_vision=False")
    windows = _read_windows(bounds, query.device)

    def attend(*batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = own(module, *batch, None, **kwargs)[0]
        return output

    if sum(windows.pattern) == query.shape[2]:  # nothing repeats
        parts = zip(*(part.split(list(windows.pattern), 2) for part in (query, key, value)), strict=True)
        outputs = [attend(*window) for window in parts]
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0], None
    packed = [part[0].transpose(0, 1) for part in (query, key, value)]  # [N, heads, D], as most models compute them
    if windows.order is None or windows.inverse is None:
        return _attend_pattern(attend, packed, windows.pattern)[None], None
    kernel = _find_packed_kernel(packed, windows, kwargs)
    if kernel is not None:
        longest = max(length for _, length in windows.groups)  # some releases pass it on the GPU, which would wait
        return kernel(packed, bounds, longest, kwargs["scaling"])[None], None
    ordered = [part.index_select(0, windows.order) for part in packed]
    parts = zip(*(part.split([n * length for n, length in windows.groups]) for part in ordered), strict=True)
    outputs = [
        _attend_pattern(attend, part, (length,)) for part, (_, length) in zip(parts, windows.groups, strict=True)
    ]
    return torch.cat(outputs).index_select(0, windows.inverse)[None], None


def _attend_pattern(
    attend: Callable[..., torch.Tensor], packed: Sequence[torch.Tensor], pattern: Sequence[int]
) -> torch.Tensor:
    """Attend within windows whose lengths repeat, with one call for each window of the pattern.

    Args:
        attend: takes [T, heads, length, D], returns [T, length, heads, D].
        packed: queries, keys and values [N, heads, D]; N is a multiple of the sum of the pattern.

    Returns:
        [N, heads, D].
    """
    period = sum(pattern)
    outputs = []
    for parts in zip(*(part.split(MOST_WINDOWS * period) for part in packed), strict=True):
        views = [part.unflatten(0, (-1, period)).transpose(1, 2).split(list(pattern), 2) for part in parts]
        results = [attend(*window) for window in zip(*views, strict=True)]
        outputs.append((torch.cat(results, 1) if len(results) > 1 else results[0]).flatten(0, 1))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


# ---- kernels for windows of several lengths


def _find_packed_kernel(
    packed: Sequence[torch.Tensor], windows: Windows, kwargs: dict[str, Any]
) -> PackedKernel | None:
    """Return a kernel that takes windows of several lengths at once, if one can compute this call."""
    query, key, value = packed
    is_plain = query.shape == key.shape == value.shape and not kwargs.get("dropout") and not kwargs.get("is_causal")
    count = sum(number for number, _ in windows.groups)
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if not query.is_cuda or not is_half or not is_plain or kwargs.get("scaling") is None or count > MOST_WINDOWS:
        return None
    for kernel in (_run_flash_attn, _run_torch_varlen):
        if _is_usable(kernel, query.device, query.dtype, query.shape[-1]):
            return kernel
    return None


def _run_flash_attn(packed: Sequence[torch.Tensor], bounds: torch.Tensor, longest: int, scale: float) -> torch.Tensor:
    flash_attn: Any = import_module("flash_attn")
    ends = bounds.to(packed[0].device, torch.int32)
    result: torch.Tensor = flash_attn.flash_attn_varlen_func(
        *packed, ends, ends, longest, longest, softmax_scale=scale, causal=False
    )
    return result


def _run_torch_varlen(packed: Sequence[torch.Tensor], bounds: torch.Tensor, longest: int, scale: float) -> torch.Tensor:
    varlen: Any = import_module("torch.nn.attention.varlen")  # of torch 2.10 and later
    ends = bounds.to(packed[0].device, torch.int32)
    result: torch.Tensor = varlen.varlen_attn(*packed, ends, ends, longest, longest, scale=scale)
    return result


@cache
def _is_usable(kernel: PackedKernel, device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Return whether a kernel is installed and right here: it must agree with plain attention on two small windows."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 24, 2, dim, generator=generator).to(device, dtype)
    bounds = torch.tensor([0, 8, 24], dtype=torch.int32, device=device)
    try:
        with torch.no_grad():
            found = kernel(list(parts), bounds, 16, dim**-0.5)
    except (ImportError, RuntimeError, TypeError, NotImplementedError):  # not installed, or not for this device
        return False
    windows = parts.float().split([8, 16], 1)
    expected = [
        torch.nn.functional.scaled_dot_product_attention(*window.transpose(1, 2)).transpose(0, 1) for window in windows
    ]
    return torch.allclose(found.float(), torch.cat(expected), atol=0.03, rtol=0.03)
