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
from floc.analysis.plots import overlay
from floc.analysis.projection import Projection, tsne
