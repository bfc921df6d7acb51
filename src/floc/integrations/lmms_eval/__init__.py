"""FLoC in lmms-eval: its models for video, reading a fraction of the visual tokens.

`pip install 'floc-video[eval]'` is all that registers them. Nothing here needs lmms-eval before it asks for a model.
"""

from floc.integrations.lmms_eval.families import FAMILIES, Family, manifests
from floc.integrations.lmms_eval.log import Figures, read

__all__ = ["FAMILIES", "Family", "Figures", "manifests", "read"]
