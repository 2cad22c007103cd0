"""Load a data set: number its labels, give it a test set, decode its images.

Labels are numbered from 0 in sorted order, or in the order in which files declare their classes.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from fedsdg.next_data.datasets import Column, ImageData, global_test_set
from fedsdg.next_data.parts import Cell, Part, cells_of, encoded_images, plain_columns, read_parts
from fedsdg.next_data.sources import NUM_CLASSES, Source
from fedsdg.rng import stream


def load(source: Source) -> ImageData:
    """Read a data set and decode its images.

    Args:
        source: A built-in data set or a declared one.

    Returns:
        The images with labels. ``notes`` say how many files were ignored, how many images had
        transparent pixels, and how many test images are training images, with one pair.

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
    from fedsdg.next_data.pixels import read_pixels

    data, parts, order = _labelled(source)
    images, hashes, transparent = read_pixels(source, parts)
    notes = list(data.notes)
    count = int(transparent.sum())
    if count:
        notes.append(f"{count} images have transparent pixels, composed on {source.background}")
    hashes = hashes[order]
    leaked = np.flatnonzero(data.test & np.isin(hashes, hashes[~data.test]))
    if len(leaked):
        twins = np.flatnonzero(~data.test & (hashes == hashes[leaked[0]]))
        names = [where for where, _ in encoded_images(source, parts)]
        notes.append(
            f"{len(leaked)} of {data.test.sum()} test images are training images too, such as "
            f"{names[order[leaked[0]]]}, which is {names[order[twins[0]]]}"
        )
    facts = {"size": images.shape[1], "channels": 3 if images.ndim == 4 else 1, "fit": source.fit}
    facts |= {"images": len(images), "transparent": count, "leaked": len(leaked)}
    return replace(data, images=images[order], facts={**data.facts, **facts}, notes=tuple(notes))


def survey(source: Source) -> ImageData:
    """Return a data set without decoding its images, which are uint8 [n, 0, 0] instead.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: The data differ from the declaration, a label is empty, there is one class only,
            or a class occurs in the test split only.
    """
    return load(source) if source.name == "digits" else _labelled(source)[0]


def _labelled(source: Source) -> tuple[ImageData, list[Part], np.ndarray]:
    """Return the data set without pixels, its parts, and the row [n] of each sample."""
    parts, ignored = read_parts(source)
    columns = {name: _numbered(source, parts, name) for name in plain_columns(source, parts)}
    codes, classes = columns[source.label]
    expected = NUM_CLASSES.get(source.name, max(len(classes), 2))
    if len(classes) != expected:
        raise ValueError(
            f"data set {source.name!r} has {len(classes)} classes in {source.label!r}, but needs "
            f"{expected}; set 'label' or correct the files"
        )
    notes = []
    if ignored:
        notes.append(f"{len(ignored)} files are no images or of no split, such as {ignored[0]}")
    test = np.repeat([part.test for part in parts], [part.table.num_rows for part in parts])
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
    pixels = np.empty((len(order), 0, 0), dtype=np.uint8)
    data = ImageData(source.name, pixels, codes[order], expected, test[order], notes=tuple(notes))
    facts: dict[str, Any] = {"hub": source.hub, "folder": source.folder}
    if source.built_in:
        return replace(data, facts=facts), parts, order
    columns = {name: Column(one.codes[order], one.names) for name, one in columns.items()}
    facts["classes"] = list(classes)
    return replace(data, classes=classes, columns=columns, facts=facts), parts, order


def _numbered(source: Source, parts: list[Part], name: str) -> Column:
    """Return the cells of a column as numbers; −1 where a cell is empty."""
    cells: list[Cell] = []
    values: list[Cell] = []
    for part in parts:
        more, names = cells_of(part, name, empty=name != source.label)
        cells += more
        values += [value for value in names if value not in values]
    if source.built_in and name == source.label and not values:
        values = list(range(NUM_CLASSES[source.name]))
    if len({type(value) for value in (*cells, *values)} - {type(None)}) > 1:
        raise ValueError(
            f"data set {source.name!r}: column {name!r} holds numbers in some rows, and texts or "
            "names of classes in others; store one kind in all files"
        )
    values += sorted(set(cells) - {None, *values})  # type: ignore[type-var]
    number: dict[Cell, int] = {value: code for code, value in enumerate(values)}
    codes = np.array([number.get(cell, -1) for cell in cells], dtype=np.int64)
    return Column(codes, tuple(map(str, values)))
