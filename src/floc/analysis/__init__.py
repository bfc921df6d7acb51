"""What a choice of tokens is worth, and what it looks like: functions of (tokens, Kept), for any method."""

from floc.analysis.metrics import (
    averaged_distance,
    averaged_sum_coverage,
    closeness,
    coverage,
    per_frame,
    per_second,
    redundancy,
    worst,
    zscored,
)
from floc.analysis.pictures import overlay
from floc.analysis.projection import Projection, tsne

__all__ = [
    "Projection",
    "averaged_distance",
    "averaged_sum_coverage",
    "closeness",
    "coverage",
    "overlay",
    "per_frame",
    "per_second",
    "redundancy",
    "tsne",
    "worst",
    "zscored",
]
