"""Ingest many videos into a store, on this machine or on a Ray cluster."""

from floc.archive.ingest.ingest import ingest
from floc.archive.ingest.job import IngestError
from floc.archive.ingest.ledger import IngestStatus

__all__ = ["IngestError", "IngestStatus", "ingest"]
