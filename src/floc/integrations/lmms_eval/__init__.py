"""Models for lmms-eval that compress every video with FLoC.

`pip install 'floc-video[eval]'` registers them through an entry point. Importing this package does not need lmms-eval.
"""

from floc.integrations.lmms_eval.log import SampleCost
from floc.integrations.lmms_eval.model_table import LMMS_MODELS, LmmsModel, manifests

__all__ = ["LMMS_MODELS", "LmmsModel", "SampleCost", "manifests"]
