"""Deep images are refused by their bytes; shallow ones are read whole. Files are made by hand."""

import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.data.datasets import load_dataset
from fedsdg.data.own_data import OwnData
from fedsdg.experiment.loading import load_images
from tests.own_images import ENCODED
from tests.refusals import refused

SIZE = 8


def png(depth, colour, rows, palette=b""):
    """A PNG as its specification has it: ``rows`` are the packed bytes of each row."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", SIZE, SIZE, depth, colour, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"PLTE", palette) if palette else b"",
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
            chunk(b"IEND", b""),
        ]
    )


def deep_png(colour, value):
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    return png(16, colour, [struct.pack(">H", value) * SIZE * channels] * SIZE)


def pnm(magic, largest, value, comment=b""):
    """A PPM or PGM: plain (P2, P3) or of one or two bytes a value."""
    values = [value] * SIZE * SIZE * (3 if magic in (b"P3", b"P6") else 1)
    if magic in (b"P2", b"P3"):
        content = b" ".join(b"%d" % one for one in values)
    else:
        content = struct.pack(f">{len(values)}{'H' if largest > 255 else 'B'}", *values)
    return b"%s\n%s%d %d\n%d\n%s" % (magic, comment, SIZE, SIZE, largest, content)


def tiff(bits, channels, pixels):
    """An uncompressed little-endian TIFF of one strip."""
    entries = [
        (256, 3, 1, SIZE),  # width
        (257, 3, 1, SIZE),  # height
        (258, 3, channels, bits),  # BitsPerSample
        (259, 3, 1, 1),  # no compression
        (262, 3, 1, 2 if channels == 3 else 1),  # RGB, or black is zero
        (273, 4, 1, None),  # where the strip is
        (277, 3, 1, channels),
        (278, 3, 1, SIZE),  # rows in the strip
        (279, 4, 1, len(pixels)),
    ]
    end = 8 + 2 + 12 * len(entries) + 4
    table, beyond = b"", b""
    for tag, kind, count, value in entries:
        if tag == 258 and count > 2:
            beyond = struct.pack(f"<{count}H", *[value] * count)
            value, form = end, "<HHII"
        else:
            value = end + 2 * channels * (channels > 2) if value is None else value
            form = "<HHII" if kind == 4 else "<HHIHxx"
        table += struct.pack(form, tag, kind, count, value)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return head + table + struct.pack("<I", 0) + beyond + pixels


DEEP = {
    **{f"png-{name}": (deep_png(colour, 40_000), 16)
       for name, colour in {"grey": 0, "rgb": 2, "grey-alpha": 4, "rgba": 6}.items()},
    # Twelve bits in sixteen: 4095 would become 15.
    "png-12-bits": (deep_png(2, 4095), 16),
    **{f"ppm-{magic.decode()}-{largest}": (pnm(magic, largest, largest // 2), bits)
       for magic in (b"P2", b"P3", b"P5", b"P6")
       for largest, bits in ((1023, 10), (65535, 16))},
    "ppm-comment": (pnm(b"P6", 1023, 9, b"# 255 of\n#255\n"), 10),
    "tiff-rgb": (tiff(16, 3, struct.pack("<192H", *[40_000] * 192)), 16),
    "tiff-grey": (tiff(16, 1, struct.pack("<64H", *[40_000] * 64)), 16),
}  # fmt: skip

_ENDS = {"pn": "png", "pp": "ppm", "ti": "tif"}
ramp = np.arange(SIZE)
SHALLOW = {
    # Packed by hand; value v of b bits means v / (2^b − 1) of white.
    "png-1": (png(1, 0, [bytes([0b01010101])] * SIZE), 255 * (ramp % 2)),
    "png-2": (png(2, 0, [bytes([0b00011011] * 2)] * SIZE), 85 * (ramp % 4)),
    "png-4": (png(4, 0, [bytes([0x01, 0x23, 0xAB, 0xEF])] * SIZE),
              17 * np.array([0, 1, 2, 3, 10, 11, 14, 15])),
    "png-palette-1": (png(1, 3, [bytes([0b01010101])] * SIZE, bytes([9, 9, 9, 200, 200, 200])),
                      9 + 191 * (ramp % 2)),
    "png-palette-4": (png(4, 3, [bytes([0x01, 0x23, 0x45, 0x67])] * SIZE,
                          bytes(v for n in range(16) for v in [11 * n] * 3)), 11 * ramp),
    "ppm-P5": (pnm(b"P5", 255, 77), np.full(SIZE, 77)),
    "ppm-P3": (pnm(b"P3", 255, 77, b"# 65535\n"), np.full(SIZE, 77)),
    "ppm-P1": (b"P1\n8 8\n" + b"0 1 " * 32, 255 * (1 - ramp % 2)),
    "ppm-P4": (b"P4\n8 8\n" + b"\x20" * 8, 255 * (ramp != 2)),
    "tiff-grey": (tiff(8, 1, bytes([77]) * 64), np.full(SIZE, 77)),
    "tiff-rgb": (tiff(8, 3, bytes([77]) * 192), np.full(SIZE, 77)),
}  # fmt: skip


def plain(value):
    """An image of 8 bits that is no other here."""
    return pnm(b"P5", 255, value)


def write_folder(folder, name, content):
    file = folder / "a" / f"0.{_ENDS[name[:2]]}"
    others = [folder / "a" / "1.pgm", folder / "b" / "2.pgm", folder / "b" / "3.pgm"]
    for number, place in enumerate([file, *others]):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(plain(200 + number))
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("name", DEEP)
def test_deep_images_in_a_folder_are_refused_by_their_bytes(tmp_path, name):
    content, bits = DEEP[name]
    file = write_folder(tmp_path, name, content)
    with refused(str(file), f"{bits} bits a channel", "deeper than 8 bits", "store it with 8 bits"):
        load_images(OwnData(name="mine", folder=str(tmp_path)))


@pytest.mark.parametrize("name", ["png-grey-alpha", "png-12-bits", "ppm-P6-1023", "tiff-rgb"])
def test_deep_images_in_tables_are_refused_by_their_bytes(tmp_path, name, monkeypatch):
    contents = [plain(1), plain(2), DEEP[name][0], plain(3)]
    cells = pa.array([{"bytes": one, "path": None} for one in contents], ENCODED)
    table = pa.table({"image": cells, "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "all.parquet")
    with refused("all.parquet, row 2", "deeper than 8 bits"):
        load_images(OwnData(name="mine", folder=str(tmp_path)))
    # A set of the table goes through a decoder of its own; its images are 16 pixels wide.
    (tmp_path / "usps").mkdir()
    for split in ("train", "test"):
        pq.write_table(table.slice(2, 1), tmp_path / f"usps/{split}.parquet")
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    with refused("train.parquet, row 0", "deeper than 8 bits"):
        load_dataset("usps")


@pytest.mark.parametrize("name", SHALLOW)
def test_shallow_images_are_read_as_they_are(tmp_path, name):
    content, row = SHALLOW[name]
    write_folder(tmp_path, name, content)
    data = load_images(OwnData(name="mine", folder=str(tmp_path), channels=1))
    wanted = np.tile(row.astype(np.uint8), (SIZE, 1))
    assert any((image == wanted).all() for image in data.images)


def test_other_formats_than_those_that_are_read_are_refused(tmp_path):
    """SGI holds 16 bits a channel, of which Pillow keeps 8."""
    header = struct.pack(">HBBHHHHii", 474, 0, 2, 3, SIZE, SIZE, 3, 0, 65535)
    content = header.ljust(512, b"\0") + struct.pack(">192H", *[40_000] * 192)
    file = write_folder(tmp_path, "png", content)
    with refused(str(file), "cannot be decoded", "PNG"):
        load_images(OwnData(name="mine", folder=str(tmp_path)))
