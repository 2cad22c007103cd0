"""One's own data set as ``ImageData``: classes, domains, a test set, images of one size.

Labels may be texts or any whole numbers; they are numbered in their order, and the names are kept.
A set without a test split gets one, stratified by class and domain. Whatever was done to the images
is said in ``facts``, which the provenance of a run repeats.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fedsdg.data.datasets import Column, ImageData, image_data
from fedsdg.data.encoded_images import FORMATS, UNREADABLE, require_8_bits
from fedsdg.data.own_data import OwnData
from fedsdg.data.own_rows import Cell, Rows, read_rows
from fedsdg.data.stratified import TEST_SHARE, strata, stratified_choice

#: Height and width of images that differ in theirs, where the declaration does not say.
SIZE = 64

_GREY = ("1", "L")
#: Pairs of equal images that are named.
_PAIRS = 3


@dataclass(frozen=True)
class Survey:
    """What is known of n samples before an image is decoded; training first, then the test set.

    labels: int64 [n]; official_test: bool [n]; order: int64 [n], the row of each sample;
    classes: name of each class; columns: further columns by name.
    """

    labels: np.ndarray
    official_test: np.ndarray
    order: np.ndarray
    classes: tuple[str, ...]
    columns: dict[str, Column]
    domain: Column | None
    rows: Rows
    drawn: bool


def survey(own: OwnData, generator: np.random.Generator) -> Survey:
    """Number labels and domains, and draw a test set where there is none.

    Raises FileNotFoundError where there is nothing to read, ValueError for what is not as declared,
    for an empty label, for a class of the test set that cannot be learned, and for one class alone.
    """
    rows = read_rows(own)
    n = len(rows.test)
    if not n:
        raise ValueError(f"data set {own.name!r} has no samples")
    columns = {name: _numbered(own, rows, name) for name in rows.columns}
    label = _without_gaps(own, columns[own.label], own.label)
    present = np.unique(label.codes)
    if len(present) < 2:
        raise ValueError(
            f"data set {own.name!r} has one class alone, {label.names[present[0]]!r} by column "
            f"{own.label!r}: there is nothing to tell apart; choose another column as "
            f"datasets: {own.name}.label"
        )
    domain = None
    if rows.domain is not None:
        domain = _without_gaps(own, columns[rows.domain], rows.domain)
    test = rows.test.copy()
    if not test.any():
        which = strata(label.codes, None if domain is None else domain.codes, len(label.names))
        test[stratified_choice(which, round(TEST_SHARE * n), generator)] = True
    unseen = np.setdiff1d(label.codes[test], label.codes[~test])
    if rows.test.any() and len(unseen):
        raise ValueError(
            f"data set {own.name!r}: class {label.names[unseen[0]]!r} occurs in the test split "
            "alone; spell classes alike in both"
        )
    order = np.argsort(test, kind="stable")
    return Survey(
        labels=label.codes[order],
        official_test=test[order],
        order=order,
        classes=label.names,
        columns={name: Column(one.codes[order], one.names) for name, one in columns.items()},
        domain=None if domain is None else Column(domain.codes[order], domain.names),
        rows=rows,
        drawn=not rows.test.any(),
    )


def load_own(own: OwnData, generator: np.random.Generator) -> ImageData:
    """Read a data set as it is declared.

    ``generator`` draws the test set where there is none. Raises what ``survey`` does, and
    ValueError for an image that cannot be decoded, with its row or file, and for test images that
    are training images too, unless ``own.duplicates`` is ``report``.
    """
    known = survey(own, generator)
    place = np.empty(len(known.order), dtype=np.int64)
    place[known.order] = np.arange(len(place))
    images, hashes, facts = _pixels(own, known.rows, place)
    duplicates = _duplicates(known, hashes)
    if duplicates["images"] and own.duplicates == "refuse":
        pairs = "; ".join(" is ".join(pair) for pair in duplicates["pairs"])
        raise ValueError(
            f"data set {own.name!r}: {duplicates['images']} of the {known.official_test.sum()} "
            f"test images are training images too, pixel for pixel, such as {pairs}; remove one of "
            f"each pair, or set datasets: {own.name}.duplicates to report"
        )
    source = {"folder": own.folder} if own.hub is None else {"hub": own.hub}
    test = {"drawn": TEST_SHARE} if known.drawn else {"split": own.test or "test"}
    facts = {
        **source,
        "images": len(images),
        "test": {**test, "images": int(known.official_test.sum())},
        "classes": list(known.classes),
        **({} if known.domain is None else {"domains": list(known.domain.names)}),
        **facts,
        **({"left_out": list(known.rows.left_out)} if known.rows.left_out else {}),
        **({"duplicates": duplicates} if own.duplicates == "report" else {}),
    }
    return image_data(
        own.name,
        images,
        known.labels,
        len(known.classes),
        known.official_test,
        None if known.domain is None else known.domain.codes,
        classes=known.classes,
        domains=() if known.domain is None else known.domain.names,
        columns=known.columns,
        facts=facts,
    )


def _numbered(own: OwnData, rows: Rows, name: str) -> Column:
    """A column's cells as numbers from 0 in the order of their values; −1 where one is empty."""
    cells: Sequence[Cell] = rows.columns[name]
    if name in rows.names:
        codes = np.array([-1 if cell is None else int(cell) for cell in cells], dtype=np.int64)
        names = rows.names[name]
        if codes.max() >= len(names):
            raise ValueError(
                f"data set {own.name!r}: column {name!r} holds {codes.max()}, but has names for "
                f"{len(names)} classes, counted from 0"
            )
        return Column(np.maximum(codes, -1), names)
    values = sorted({cell for cell in cells if cell is not None}, key=lambda v: (str(type(v)), v))
    if len({type(value) for value in values}) > 1:
        raise ValueError(
            f"data set {own.name!r}: column {name!r} holds {values[0]!r} and {values[-1]!r}; let "
            "it hold texts or numbers"
        )
    number = {value: code for code, value in enumerate(values)}
    codes = np.array([-1 if cell is None else number[cell] for cell in cells], dtype=np.int64)
    return Column(codes, tuple(map(str, values)))


def _without_gaps(own: OwnData, column: Column, name: str) -> Column:
    empty = np.flatnonzero(column.codes < 0)
    if len(empty):
        raise ValueError(
            f"data set {own.name!r}: column {name!r} is empty in {len(empty)} rows, the first of "
            f"them row {empty[0]}; fill them, or remove these rows"
        )
    return column


# --- Images ---------------------------------------------------------------------------------------


def _pixels(
    own: OwnData, rows: Rows, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Decode the images.

    Returns:
        Images uint8 [n, S, S(, 3)], image i at ``place[i]``; the hash of each before it was
        resized, in the same order; and what was done to them.
    """
    size, channels, found = _shape(own, rows)
    mode = "L" if channels == 1 else "RGB"
    shape = (size, size) if channels == 1 else (size, size, 3)
    images = np.empty((len(place), *shape), dtype=np.uint8)
    hashes = np.empty(len(place), dtype="S16")
    resized = converted = 0
    for at, (where, image) in zip(place, _opened(rows), strict=True):
        try:
            # A photograph may lie on its side, and say so.
            upright = ImageOps.exif_transpose(image)
            pixels = upright if upright.mode == mode else upright.convert(mode)
            converted += (upright.mode in _GREY) != (channels == 1)
            stored = np.asarray(pixels)
            content = hashlib.blake2b(str(stored.shape).encode(), digest_size=16)
            content.update(np.ascontiguousarray(stored).data)
            hashes[at] = content.digest()
            if pixels.size != (size, size):
                stored = np.asarray(square(pixels, size, own.fit, own.resize))
                resized += 1
            images[at] = stored
        except UNREADABLE as error:
            raise _corrupt(where) from error
    facts: dict[str, Any] = {"size": size, "channels": channels, **found}
    if resized:
        facts |= {"resized": resized, "resize": own.resize, "fit": own.fit}
    if converted:
        facts["converted"] = converted
    return images, hashes, facts


def _duplicates(known: Survey, hashes: np.ndarray) -> dict[str, Any]:
    """Count the test images whose pixels are those of a training image, and name some pairs.

    Args:
        known: the data set, whose samples ``hashes`` [n] follows.
    """
    test = known.official_test
    shared = np.flatnonzero(test)[np.isin(hashes[test], hashes[~test])]
    pairs = []
    for sample in shared[:_PAIRS]:
        twin = np.flatnonzero(~test & (hashes == hashes[sample]))[0]
        pairs.append([known.rows.where(int(known.order[i])) for i in (sample, twin)])
    return {"images": len(shared), "pairs": pairs}


def _shape(own: OwnData, rows: Rows) -> tuple[int, int, dict[str, Any]]:
    """Size and channels, and the sizes that were found; reads headers of images alone."""
    sizes, grey = set(), True
    for _, image in _opened(rows):
        sizes.add(image.size)
        grey = grey and image.mode in _GREY
    width, height = next(iter(sizes))
    alike = len(sizes) == 1 and width == height
    size = own.size or (width if alike else SIZE)
    found = sorted(sizes, key=lambda one: (one[0] * one[1], one))
    spread = [f"{width}×{height}" for width, height in (found[0], found[-1])]
    return size, own.channels or (1 if grey else 3), {"stored_sizes": list(dict.fromkeys(spread))}


def square(image: Image.Image, size: int, fit: str, resize: str) -> Image.Image:
    """An image as [size, size]: its middle (``crop``), padded with black, or stretched."""
    method = Image.Resampling[resize.upper()]
    if fit == "crop":
        return ImageOps.fit(image, (size, size), method)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), method)
    return image.resize((size, size), method)


def _opened(rows: Rows) -> Iterator[tuple[str, Image.Image]]:
    for row, content in enumerate(rows.encoded()):
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except UNREADABLE as error:
            raise _corrupt(rows.where(row)) from error
        with image:
            require_8_bits(rows.where(row), image, content)
            yield rows.where(row), image


def _corrupt(where: str) -> ValueError:
    return ValueError(
        f"{where}: the image cannot be decoded; replace it by one of {', '.join(FORMATS)}, or "
        "remove it"
    )
