"""Compression methods: one file each, one call, `(grid, budget) -> Kept`."""

from floc.methods.base import CoverageSearch as CoverageSearch
from floc.methods.base import IndexSelection as IndexSelection
from floc.methods.base import Method as Method
from floc.methods.base import SelfSizing as SelfSizing
from floc.methods.base import Streamable as Streamable
from floc.methods.registry import MethodInfo as MethodInfo
from floc.methods.registry import MethodSpec as MethodSpec
from floc.methods.registry import describe as describe
from floc.methods.registry import format_manual as format_manual
from floc.methods.registry import format_markdown as format_markdown
from floc.methods.registry import get as get
from floc.methods.registry import get_defaults as get_defaults
from floc.methods.registry import get_info as get_info
from floc.methods.registry import list_methods as list_methods
from floc.methods.registry import list_options as list_options
from floc.methods.registry import make as make
from floc.methods.registry import parse as parse
from floc.methods.registry import register as register
from floc.methods.registry import runs_alone as runs_alone
from floc.methods.registry import stays_on as stays_on
