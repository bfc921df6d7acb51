"""The backend that runs, and the message if the requested one cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

from floc.selection.backends import resolve_backend

SCRIPT = """
import numpy as np, floc
try:
    {call}
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "call",
    ["floc.select(np.eye(3), 1, backend='gpu')", "floc.compress(np.ones((2, 3, 4)), budget=1, backend='gpu')"],
)
def test_gpu_backend_rejects_cpu_tokens(call: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    code = [sys.executable, "-c", SCRIPT.format(call=call)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "backend 'gpu' cannot run on cpu: the tokens are on the CPU; pass backend='auto'\n", (
        done.stderr
    )


def test_auto_uses_compiled_backend_on_cpu() -> None:
    assert resolve_backend("auto", torch.device("cpu")) == "cpu"


def test_auto_uses_torch_on_other_devices_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, hip in (("mps", None), ("xpu", None), ("cuda:7", "6.2")):
        monkeypatch.setattr(torch.version, "hip", hip)
        with pytest.warns(UserWarning, match=f"backend='torch' on {device.split(':')[0]}.*for NVIDIA GPUs"):
            assert resolve_backend("auto", torch.device(device)) == "torch"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resolve_backend("auto", torch.device(device)) == "torch"
        with pytest.raises(ValueError, match=f"cannot run on {device}: its kernels are for NVIDIA GPUs"):
            resolve_backend("gpu", torch.device(device))


def test_auto_uses_torch_with_old_triton_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.__version__", "3.2.0")
    with pytest.warns(UserWarning, match=r"Triton 3\.6 or newer, and 3\.2\.0 is installed"):
        assert resolve_backend("auto", torch.device("cuda:6")) == "torch"
