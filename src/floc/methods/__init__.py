"""Compression methods: one file each, one call, `(grid, budget) -> Kept`."""

from floc.methods.base import Method as Method
from floc.methods.base import Naming as Naming
from floc.methods.base import Native as Native
from floc.methods.base import Reaching as Reaching
from floc.methods.base import Streaming as Streaming
from floc.methods.registry import Facts as Facts
from floc.methods.registry import Spec as Spec
from floc.methods.registry import defaults as defaults
from floc.methods.registry import describe as describe
from floc.methods.registry import facts as facts
from floc.methods.registry import get as get
from floc.methods.registry import make as make
from floc.methods.registry import manual as manual
from floc.methods.registry import markdown as markdown
from floc.methods.registry import names as names
from floc.methods.registry import options as options
from floc.methods.registry import parse as parse
from floc.methods.registry import register as register
from floc.methods.registry import runs_alone as runs_alone
from floc.methods.registry import stays_on as stays_on
