"""Small images and data sets that tests write."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def noise(seed, shape=(12, 12, 3)):
    """Return uint8 pixels of an image that no other seed has."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="png", **options):
    """Return the bytes of an image or of uint8 pixels."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def folder(root, counts, start=0):
    """Write so many PNG images into each folder, such as ``train/cat``."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            start += 1
            (root / name / f"{k}.png").write_bytes(encoded(noise(start)))
    return root


def table(file, images, labels, names=None, **columns):
    """Write a parquet file as the hub has them; ``names``: classes of the column ``label``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cells = [image if isinstance(image, bytes) else encoded(image) for image in images]
    structs = pa.array([{"bytes": cell or None, "path": None} for cell in cells])
    rows = pa.table({"image": structs, "label": pa.array(list(labels)), **columns})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        stored = json.dumps({"info": {"features": features}})
        rows = rows.replace_schema_metadata({"huggingface": stored})
    pq.write_table(rows, file)
    return file
