"""The archive: many compressed videos in one Lance store, to be opened, searched and asked about."""

try:
    import lance  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError("a store needs Lance: pip install 'floc-video[store]'") from error

from floc.archive.maintenance import CompactionResult as CompactionResult
from floc.archive.maintenance import StoreProblem as StoreProblem
from floc.archive.schema import DamagedStoreError as DamagedStoreError
from floc.archive.schema import StoredPiece as StoredPiece
from floc.archive.schema import StoredVideo as StoredVideo
from floc.archive.schema import StoreError as StoreError
from floc.archive.schema import video_id as video_id
from floc.archive.search import SearchResult as SearchResult
from floc.archive.store import Store as Store
