"""Load a data set: number its labels, give it a test set, decode its images.

Labels are numbered from 0 in sorted order, or in the order in which files declare their classes.
"""

from dataclasses import replace

import numpy as np

from fedsdg.data.datasets import Column, ImageData, global_test_set
from fedsdg.data.rows import Rows, read_rows
from fedsdg.data.sources import NUM_CLASSES, Source
from fedsdg.rng import stream


def load(source: Source) -> ImageData:
    """Read a data set and decode its images.

    Args:
        source: A built-in data set or a declared one.

    Returns:
        The images with labels. ``notes`` say how many files were ignored, which classes have one
        image, how many images had transparent pixels, and how many test images are training images,
        with one pair.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: The data differ from the declaration, or a file or an image is damaged; the
            message names file and row.

    Example:
        >>> load(Source(name="digits")).images.shape
        (1797, 8, 8)
    """
    if source.name == "digits":
        from sklearn.datasets import load_digits

        bundle = load_digits()
        # 0 … 16 on-pixels per block of 4×4, spread over 0 … 255.
        images = np.rint(bundle.images * (255.0 / 16.0)).astype(np.uint8)
        return ImageData("digits", images, bundle.target, NUM_CLASSES["digits"])
    from fedsdg.data.pixels import read_pixels

    rows = read_rows(source)
    data, order = _labelled(source, rows)
    images, hashes, transparent = read_pixels(source, rows)
    notes = list(data.notes)
    count = int(transparent.sum())
    if count:
        notes.append(f"images with transparent pixels, made {source.background}: {count}")
    hashes = hashes[order]
    leaked = np.flatnonzero(data.test & np.isin(hashes, hashes[~data.test]))
    if len(leaked):
        twin = np.flatnonzero(~data.test & (hashes == hashes[leaked[0]]))[0]
        notes.append(
            f"test images that are training images too: {len(leaked)} of {data.test.sum()}, such "
            f"as {rows.where[order[leaked[0]]]}, which is {rows.where[order[twin]]}"
        )
    facts = {
        **data.facts,
        "size": images.shape[1],
        "channels": 3 if images.ndim == 4 else 1,
        "fit": source.fit,
        "images": len(images),
        "transparent": count,
        "leaked": len(leaked),
    }
    return replace(data, images=images[order], facts=facts, notes=tuple(notes))


def survey(source: Source) -> ImageData:
    """Return a data set without decoding its images, which are uint8 [n, 0, 0] instead.

    Args:
        source: A built-in data set or a declared one.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: The data differ from the declaration, a label is empty, there is one class only,
            or a class occurs in the test split only.
    """
    return load(source) if source.name == "digits" else _labelled(source, read_rows(source))[0]


def _labelled(source: Source, rows: Rows) -> tuple[ImageData, np.ndarray]:
    """Return the data set without pixels, training samples first, and the row [n] of each."""
    codes, classes = rows.columns[source.label]
    if (codes < 0).any():
        where = rows.where[int(codes.argmin())]
        raise ValueError(
            f"{where}: column {source.label!r} is empty or the number of no class; correct it, or "
            "remove the row"
        )
    expected = NUM_CLASSES.get(source.name, max(len(classes), 2))
    if len(classes) != expected:
        raise ValueError(
            f"data set {source.name!r} has {len(classes)} classes in {source.label!r}, but needs "
            f"{expected}; set 'label', add a folder for each class, or correct the files"
        )
    notes = []
    if rows.ignored:
        notes.append(f"ignored files: {len(rows.ignored)}, such as {rows.ignored[0]}")
    test = rows.test.copy()
    if not test.any():
        test[global_test_set(codes, test, stream("test-split", 0))] = True
        single = [name for name, size in zip(classes, np.bincount(codes), strict=True) if size == 1]
        if single:
            notes.append(f"classes of one image, which is trained on: {', '.join(single)}")
    unseen = np.setdiff1d(codes[test], codes[~test])
    if len(unseen) or not test.any():
        missing = f"images of class {classes[unseen[0]]!r}" if len(unseen) else "test images"
        raise ValueError(
            f"data set {source.name!r} has too few {missing} to train and to test on; add images, "
            "or spell classes alike in both splits"
        )
    order = np.argsort(test, kind="stable")
    data = ImageData(
        name=source.name,
        images=np.empty((len(order), 0, 0), dtype=np.uint8),
        labels=codes[order],
        num_classes=expected,
        test=test[order],
        facts={"hub": source.hub, "folder": source.folder},
        notes=tuple(notes),
    )
    if source.built_in:
        return data, order
    columns = {name: Column(codes[order], names) for name, (codes, names) in rows.columns.items()}
    facts = {**data.facts, "classes": list(classes)}
    return replace(data, classes=classes, columns=columns, facts=facts), order
