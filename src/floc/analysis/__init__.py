"""Measure and visualise what a method kept: functions of (tokens, Kept), for any method."""

from floc.analysis.metrics import (
    averaged_distance,
    averaged_sum_coverage,
    closeness,
    count_per_frame,
    count_per_second,
    coverage,
    redundancy,
    worst_coverage,
    zscore,
)
from floc.analysis.pictures import overlay
from floc.analysis.projection import Projection, tsne

__all__ = [
    "Projection",
    "averaged_distance",
    "averaged_sum_coverage",
    "closeness",
    "count_per_frame",
    "count_per_second",
    "coverage",
    "overlay",
    "redundancy",
    "tsne",
    "worst_coverage",
    "zscore",
]
