"""Numbers, addresses and tables as text."""

import re
from collections.abc import Iterable, Sequence


def format_bytes(size_bytes: float) -> str:
    """Format a size with a binary unit.

    >>> format_bytes(5_000_000_000)
    '4.7 GiB'
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


def format_time(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss.

    >>> format_time(59.96), format_time(3725)
    ('1:00', '1:02:05')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def redact_source(text: str) -> str:
    """Remove user, password, query and other secrets from an address, for messages, logs and metadata.

    >>> redact_source("rtsp://admin:secret@10.0.0.7:554/main?token=1"), redact_source("talk.mp4")
    ('rtsp://10.0.0.7:554/main', 'talk.mp4')
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if not re.fullmatch(r"(\[[^]@]*\]|[^:@]*)(:\d*)?", authority):  # more than host and port
        # a password may contain "@", and if not escaped even "/", "?" and "#"
        rest = (rest.partition("?")[0] if "@" in authority else rest).rpartition("@")[2]
    path = re.split("[?#]", rest, maxsplit=1)[0]
    # cameras take passwords in the path, too: /user=admin_password=1234_channel=1
    path = re.sub(r"(?i)(pass\w*?|pwd|token|secret|key|sig|signature|auth)=[^/]*", r"\1=***", path)
    return f"{scheme.lower()}://{path}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; all columns but the first are right-aligned.

    >>> print(markdown_table(["method", "ms"], [["floc", "1.5"]]))
    | method | ms |
    |---|---:|
    | floc | 1.5 |
    """
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)])
