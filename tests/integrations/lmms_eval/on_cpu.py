"""Run lmms-eval with its Qwen3-Omni on a CPU: `python on_cpu.py`, with the arguments of lmms-eval.

The model of lmms-eval moves inputs to CUDA, and ignores the number of tokens that a task asks for.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

from lmms_eval.models.simple.qwen3_omni import Qwen3_Omni

load = Qwen3_Omni.__init__


@wraps(load)
def load_on_cpu(self: Any, **arguments: Any) -> None:
    load(self, **arguments)
    self.device_map = "cpu"
    self.model.thinker.generation_config.suppress_tokens = self.model.generation_config.suppress_tokens
    self.model.generate = partial(self.model.generate, thinker_max_new_tokens=8)


Qwen3_Omni.__init__ = load_on_cpu

if __name__ == "__main__":
    from lmms_eval.__main__ import cli_evaluate

    cli_evaluate()
