"""vLLM plugin that selects video tokens with FLoC instead of vLLM's own pruning.

vLLM loads the plugin through the entry point `vllm.general_plugins`. It does nothing unless `FLOC_VLLM=1` is set or
`--additional-config '{"floc": {...}}'` is given. See `docs/guides/vllm.md`.
"""

from floc.integrations.vllm.plugin import VLLM_MODELS, VLLM_VERSIONS, register
from floc.integrations.vllm.settings import Settings
from floc.integrations.vllm.stored import name_stored_video

__all__ = ["VLLM_MODELS", "VLLM_VERSIONS", "Settings", "name_stored_video", "register"]
