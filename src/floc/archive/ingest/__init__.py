"""Ingest many videos into a store, on this machine or on a Ray cluster."""

from floc.archive.ingest.ingest import ingest as ingest
from floc.archive.ingest.ledger import IngestStatus as IngestStatus
from floc.archive.ingest.local import IngestError as IngestError
