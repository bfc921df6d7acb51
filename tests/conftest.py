from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Generator

import numpy as np
import pytest
import torch

from examples.synthetic import make_tokens
from floc.cli import signals

if not torch.cuda.is_available():
    # kernels run in Triton's interpreter then, which has to be known before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # as many workers as cores: more threads would only wait for one another


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that needs a package which is not installed; the error says which."""
    try:
        return (yield)
    except ImportError as error:
        cause = error.__cause__ or error.__context__ or error
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        # an error of an installed package is a defect, and the test fails
        if not package or package in sys.modules or importlib.util.find_spec(package) is not None:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: on a GPU, or in Triton's interpreter on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def tokens() -> np.ndarray:
    """70 frames of 3 x 4 cells: three blocks, the last one short."""
    return make_tokens(70, 3, 4, dim=48, seed=1, scenes=3, shot_frames=15, dtype=np.float32)


@pytest.fixture
def one_thread():
    """Let torch use one thread: on tiny models, threads only wait for one another, and for those of other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def set_threads():
    """Set torch's threads, and put them back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def restore_handlers():
    """Restore what the command line sets for the rest of the process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hooks = sys.unraisablehook, threading.excepthook
    yield
    atexit.unregister(signals.leave)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.unraisablehook, threading.excepthook = hooks
