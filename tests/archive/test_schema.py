"""The schemas are those of format 1: stores written before must stay readable."""

from __future__ import annotations

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc.archive.schema import FORMAT, TOKEN_ROWS, VIDEOS, hash_token_row
from floc.archive.token_rows import split_rows
from tests.archive.builders import make_piece

MODEL = (
    "struct<kind: string, name: string, revision: string, config: string, hidden_size: int64, weights: list<item: "
    "double>>"
)
VIDEO_COLUMNS = {
    "string": "id uri content status error encoder options made seconds version sha256",
    "int64": "size frames frames_per_slice tokens kept",
    "double": "modified_s duration_s fps coverage written_s",
    "bool": "nested",
    "list<item: int64>": "shape fragments",
    "list<item: double>": "starts_s",
    "list<item: string>": "pieces",
    MODEL: "model",
}
VIDEO_ORDER = (
    "id uri content size modified_s status error duration_s fps frames frames_per_slice shape tokens kept coverage "
    "encoder model options nested made pieces starts_s fragments seconds written_s version sha256"
)
TOKEN_ROW_COLUMNS = {
    "string": "video attempt dtype sha256",
    "int64": "piece row first slices kept bytes frames",
    "double": "start_s end_s coverage written_s",
    "bool": "last",
    "list<item: int64>": "shape positions order",
    "list<item: double>": "gains times_s last_s",
    "large_binary": "features",
    "list<item: large_binary>": "deep",
}
TOKEN_ROW_ORDER = (
    "video piece attempt row start_s end_s first slices last kept bytes shape frames coverage written_s dtype "
    "positions order gains features deep times_s last_s sha256"
)


@pytest.mark.parametrize(
    ("schema", "columns", "order"),
    [(VIDEOS, VIDEO_COLUMNS, VIDEO_ORDER), (TOKEN_ROWS, TOKEN_ROW_COLUMNS, TOKEN_ROW_ORDER)],
    ids=["videos", "token rows"],
)
def test_schema_is_format_1(schema, columns: dict[str, str], order: str) -> None:
    assert FORMAT == b"1"
    assert schema.metadata == {b"floc.format": b"1"}
    assert schema.names == order.split()
    types = {name: kind for kind, names in columns.items() for name in names.split()}
    assert {field.name: str(field.type) for field in schema} == types


def test_token_row_hash_is_stable() -> None:
    row = split_rows(make_piece(12, layers=1), "video", 0, "attempt", 1.5)[0]
    assert hash_token_row(row) == row["sha256"] == "e8c2f49d2a7fabb516561e33294ed5b81e33b78784aec9c1260c93459095b66e"
