"""The archive: many compressed videos in one Lance store, to be opened, searched and asked about."""

try:
    import lance
    import pyarrow
except ImportError as error:
    raise ImportError("a store needs Lance: pip install 'floc-video[store]'") from error

from floc.archive.maintenance import CompactionResult, StoreProblem
from floc.archive.schema import DamagedStoreError, StoredPiece, StoredVideo, StoreError, video_id
from floc.archive.search import SearchResult
from floc.archive.store import Store
