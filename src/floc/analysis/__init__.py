"""Measure and visualise what a method kept: functions of (tokens, Kept), for any method."""

from floc.analysis.metrics import averaged_distance as averaged_distance
from floc.analysis.metrics import averaged_sum_coverage as averaged_sum_coverage
from floc.analysis.metrics import closeness as closeness
from floc.analysis.metrics import count_per_frame as count_per_frame
from floc.analysis.metrics import count_per_second as count_per_second
from floc.analysis.metrics import coverage as coverage
from floc.analysis.metrics import redundancy as redundancy
from floc.analysis.metrics import worst_coverage as worst_coverage
from floc.analysis.metrics import zscore as zscore
from floc.analysis.plots import overlay as overlay
from floc.analysis.projection import Projection as Projection
from floc.analysis.projection import tsne as tsne
