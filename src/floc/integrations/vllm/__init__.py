"""FLoC in vLLM: a plugin that chooses the tokens of a video where vLLM's own pruning would.

vLLM finds it by the entry point `vllm.general_plugins`, and it does nothing unless it is asked to, by `FLOC_VLLM=1` or
by `--additional-config '{"floc": {...}}'`. `docs/vllm.md` says how to use it.
"""

from floc.integrations.vllm.plugin import register
from floc.integrations.vllm.settings import Settings
from floc.integrations.vllm.support import MODELS, VERSIONS

__all__ = ["MODELS", "VERSIONS", "Settings", "register"]
