"""Mutations that follow the structure of video containers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.mutations import ODD_FLOATS, ODD_INTEGERS, mutate_bytes

ODD_DURATIONS = (
    *(
        "00:00:1e99999999",
        "00:00:1/0",
        "1/0",
        "-1:00:00",
        "99999999999:00:00.0",
        "nan",
        "inf",
        "00:00:-1",
        "",
        ":",
        "::",
    ),
    *("00:00:00.000000000", "1e308", "00:00:1e-99999999", "0x10:00:00", "1_0:00:00", "\u0663:00:00", "9" * 100_000),
    *("00:00:" + "9" * 5000, "00:00:0." + "0" * 5000 + "1", "00:00:02.4\x00", "00:00:02.4\x1b[2J", "00:00:02,4", "2.4"),
)
BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"udta", b"mvex", b"moof", b"traf", b"dinf", b"mfra"}
MASTERS = {
    *(0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0, 0x1F43B675, 0x1254C367, 0x7373, 0x67C8, 0x114D9B74, 0x4DBB),
    *(0x1C53BB6B, 0xBB, 0xB7, 0xA0, 0x55B0, 0x7670, 0x1A45DFA3),
}
TAG_TEXT = 0x4487


@dataclass
class Node:
    """A box of MP4, an element of Matroska, or a chunk of AVI."""

    name: bytes
    data: bytes = b""
    children: list[Node] | None = None
    size: int | None = None  # written in place of the right one
    parent: list[Node] = field(default_factory=list, repr=False)

    def walk(self) -> list[Node]:
        """Return this node and all below it."""
        below = [node for child in self.children or () for node in child.walk()]
        return [self, *below]


def mutate_container(data: bytes, suffix: str, rng: Random) -> tuple[bytes, str]:
    """Change a video file; return its bytes, and what was changed."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng), "bytes"
    if suffix in (".mp4", ".mov"):
        return _mutate_tree(_parse_boxes(data), rng, _join_box, is_big=True)
    if suffix in (".mkv", ".webm"):
        return _mutate_tree(_parse_elements(data), rng, _join_element, is_big=True)
    if suffix == ".avi":
        return _mutate_tree(_parse_chunks(data), rng, _join_chunk, is_big=False)
    if suffix == ".ts":
        return _mutate_packets(data, rng)
    return _mutate_fields(data, rng)


def _mutate_tree(roots: list[Node], rng: Random, join, *, is_big: bool) -> tuple[bytes, str]:
    """Change one to three nodes of a tree."""
    what = []
    root = Node(b"", children=roots)
    for _ in range(rng.choice((1, 1, 2, 3))):
        nodes = [node for node in root.walk()[1:] if len(node.data) < 100_000]
        small = [node for node in nodes if node.name not in (b"mdat", b"movi", b"\xa3")]
        if not small:
            break
        node = rng.choice(small)
        parent = next(
            other for other in root.walk() if other.children and any(node is child for child in other.children)
        )
        assert parent.children is not None
        place = next(i for i, child in enumerate(parent.children) if child is node)
        change = rng.randrange(12)
        if change == 0:
            del parent.children[place]
        elif change == 1:
            parent.children[place:place] = [node] * rng.choice((1, 2, 1000))
        elif change == 2:
            node.size = rng.choice(ODD_INTEGERS)
        elif change == 3:
            node.name = rng.choice([other.name for other in root.walk()[1:]])
        elif change == 4 and node.children is not None:
            for _ in range(rng.choice((1, 10, 100))):
                parent.children[place] = Node(node.name, children=[parent.children[place]])
        elif node.children is None:
            node.data = _change_payload(node, rng, is_big)
        what.append(f"{node.name!r} {change}")
    return b"".join(map(join, roots)), ", ".join(what)


def _change_payload(node: Node, rng: Random, is_big: bool) -> bytes:
    if node.name == TAG_TEXT.to_bytes(2, "big"):
        return rng.choice(ODD_DURATIONS).encode()
    order = "big" if is_big else "little"
    data = bytearray(node.data)
    if len(node.name) < 4 and rng.random() < 0.7:  # a value of Matroska fills its element
        width = rng.choice((len(data) or 1, 1, 2, 4, 8))
        if rng.random() < 0.3:
            return struct.pack(">d", rng.choice(ODD_FLOATS))
        return (rng.choice(ODD_INTEGERS) % (1 << 8 * width)).to_bytes(width, "big")
    if not data or rng.random() < 0.1:
        return mutate_bytes(bytes(data), rng)
    for _ in range(rng.choice((1, 1, 2))):
        width = rng.choice((1, 2, 4, 4, 4, 8))
        at = rng.randrange(0, len(data), min(width, 4)) if len(data) > width else 0
        data[at : at + width] = (rng.choice(ODD_INTEGERS) % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
    return bytes(data)


def _parse_boxes(data: bytes) -> list[Node]:
    boxes, at = [], 0
    while at + 8 <= len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        head = 8
        if size == 1:
            size, head = struct.unpack(">Q", data[at + 8 : at + 16])[0], 16
        end = at + size if size >= head else len(data)
        body = data[at + head : end]
        boxes.append(Node(name, children=_parse_boxes(body)) if name in BOXES else Node(name, body))
        at = end
    return boxes


def _join_box(node: Node) -> bytes:
    body = node.data if node.children is None else b"".join(map(_join_box, node.children))
    size = len(body) + 8 if node.size is None else node.size
    return struct.pack(">I4s", size % (1 << 32), node.name) + body


def _parse_elements(data: bytes) -> list[Node]:
    elements, at = [], 0
    while at < len(data):
        width = 9 - data[at].bit_length()
        name = data[at : at + width]
        at += width
        if at >= len(data) or width > 4:
            break
        width = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + width], "big") & ~(1 << 7 * width)
        at += width
        end = len(data) if size == (1 << 7 * width) - 1 else at + size
        body = data[at:end]
        is_master = int.from_bytes(name, "big") in MASTERS
        elements.append(Node(name, children=_parse_elements(body)) if is_master else Node(name, body))
        at = end
    return elements


def _join_element(node: Node) -> bytes:
    body = node.data if node.children is None else b"".join(map(_join_element, node.children))
    size = len(body) if node.size is None else node.size % (1 << 56)
    return node.name + ((1 << 56) | size).to_bytes(8, "big") + body


def _parse_chunks(data: bytes) -> list[Node]:
    chunks, at = [], 0
    while at + 8 <= len(data):
        name, size = struct.unpack("<4sI", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if name in (b"RIFF", b"LIST"):
            chunks.append(Node(name + body[:4], children=_parse_chunks(body[4:])))
        else:
            chunks.append(Node(name, body))
        at += 8 + size + size % 2
    return chunks


def _join_chunk(node: Node) -> bytes:
    body = node.data if node.children is None else b"".join(map(_join_chunk, node.children))
    body = node.name[4:] + body
    size = len(body) if node.size is None else node.size
    return struct.pack("<4sI", node.name[:4], size % (1 << 32)) + body + b"\0" * (len(body) % 2)


def _mutate_packets(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Change packets of MPEG-TS: their order, headers and timestamps."""
    packets = [bytearray(data[at : at + 188]) for at in range(0, len(data), 188)]
    change = rng.randrange(6)
    at = rng.randrange(len(packets))
    if change == 0:
        del packets[at]
    elif change == 1:
        packets[at:at] = [packets[at]] * rng.choice((1, 3, 1000))
    elif change == 2:
        packets = packets[at:] + packets[:at]
    elif change == 3:
        rng.shuffle(packets)
    else:
        for packet in rng.sample(packets, min(len(packets), rng.choice((1, 3, 50)))):
            start = packet.find(b"\0\0\1\xe0")
            if change == 4 and 0 <= start < 170:
                packet[start + 9 : start + 14] = rng.randbytes(5)
                packet[start + 9] = 0x21 | packet[start + 9] & 0x0E
            else:
                packet[rng.randrange(1, 12)] = rng.randrange(256)
    return b"".join(packets), f"packets {change}"


def _mutate_fields(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Change sizes and delays of pictures."""
    changed = bytearray(data)
    marks = [at for at in range(len(data) - 9) if data[at : at + 2] in (b"\xff\xc0", b"\x21\xf9")]
    places = [6, 8, 10, *(at + offset for at in marks for offset in (2, 4, 5, 7, 8))]
    for _ in range(rng.choice((1, 2, 5))):
        at = rng.choice(places)
        changed[at : at + 2] = (rng.choice(ODD_INTEGERS) % 65536).to_bytes(2, rng.choice(("little", "big")))  # type: ignore[arg-type]
    return bytes(changed), "sizes"


def write_reference(target: str, rng: Random) -> tuple[bytes, str]:
    """Return a file that names another video, and the suffix it has."""
    name = rng.choice(
        (target, f"file://{target}", f"file:{target}", target.rpartition("/")[2], f"subfile,,start,0,end,0,,:{target}")
    )
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{name}\n#EXT-X-ENDLIST\n"
    dash = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static">'
        f'<Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{name}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>"
    )
    sdp = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    sdp += "m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
    texts = {
        "m3u8": playlist,
        "variants": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{name}\n",
        "key": playlist.replace("#EXTINF", f'#EXT-X-KEY:METHOD=AES-128,URI="{name}"\n#EXTINF'),
        "concat": f"ffconcat version 1.0\nfile '{name}'\n",
        "concat without head": f"file '{name}'\n",
        "dash": dash,
        "sdp": sdp,
        "list": f"{name}\n",
    }
    form = rng.choice(list(texts))
    text = texts[form].encode()
    if rng.random() < 0.2:
        text = mutate_bytes(text, rng)
    suffix = rng.choice((".m3u8", ".ffconcat", ".txt", ".mpd", ".sdp", ".mp4", ".mkv", ".ts", ".avi", ".webm", ""))
    return text, f"{form}{suffix}"
