"""The client that a file belongs to, and its counts."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedsdg.aggregation.tensor_files import TensorFile


def client_numbers(labels: Sequence[str]) -> list[int]:
    """Return the number at the end of each file's name, or of its folder's if names are equal.

    Args:
        labels: The files, as they were given.

    Raises:
        ValueError: A name has no number, or two files have the same.
    """
    numbers: dict[int, str] = {}
    with_folder = _have_equal_names(labels)
    for label in labels:
        name = Path(label).parent.name if with_folder else Path(label).stem
        digits = name[len(name.rstrip("0123456789")) :]
        if not digits:
            raise ValueError(
                f"{label}: with num_clients or client_samples, a client is known by the number at "
                "the end of its file's name; rename it, as in client-12.safetensors"
            )
        other = numbers.setdefault(int(digits), label)
        if other != label:
            raise ValueError(
                f"{other} and {label} are both of client {int(digits)}; give one of them"
            )
    return list(numbers)


def upload_files(folder: str | Path, labels: Sequence[str | Path]) -> list[Path]:
    """Return the files of a further upload, named as those of the clients.

    Args:
        folder: Where they lie.
        labels: The clients' files, as they were given.
    """
    parts = -2 if _have_equal_names([str(label) for label in labels]) else -1
    return [Path(folder, *Path(label).parts[parts:]) for label in labels]


def counts_by_client(
    name: str,
    given: Any,
    needs: str | None,
    labels: Sequence[str],
    ids: Sequence[Hashable],
    files: Sequence[TensorFile],
) -> Any:
    """Return counts by client id.

    Args:
        name: "num_samples" or "num_batches".
        given: A mapping by path as given, file name, name without ending, or folder if files have
            equal names; None for the counts in the files' metadata, if there are any and the rule
            needs them; anything else is returned as it is.
        needs: The counts that the rule needs.
        labels: The files, as they were given.
        ids: Their clients.
        files: The same files.

    Raises:
        ValueError: A file has no count, or a key fits several files.
    """
    if isinstance(given, Mapping):
        with_folder = _have_equal_names(labels)
        keys = {label: _keys(label, with_folder) for label in labels}
        uses = Counter(chain.from_iterable(keys.values()))
        return {
            client: given[_only_key(name, given, label, keys[label], uses)]
            for client, label in zip(ids, labels, strict=True)
        }
    if given is not None or needs != name or not any(name in file.metadata for file in files):
        return given
    texts = {client: file.metadata.get(name) for client, file in zip(ids, files, strict=True)}
    return {
        client: float(text) if text and text.replace(".", "", 1).isdecimal() else text
        for client, text in texts.items()
    }


def _only_key(
    name: str, given: Mapping[Any, Any], label: str, keys: list[str], uses: Mapping[str, int]
) -> str:
    """Return the key of a file's count."""
    key = next((key for key in keys if key in given), None)
    if key is None:
        raise ValueError(f"{name} holds no count for {label}; add one under that name")
    if uses[key] > 1:
        raise ValueError(
            f"{name}: {key!r} fits several files, such as {label}; name them by their paths as "
            "given, or by their folders"
        )
    return key


def _keys(label: str, with_folder: bool) -> list[str]:
    """Return the keys under which a file's count may stand, the most specific first."""
    path = Path(label)
    folders = [f"{path.parent.name}/{path.name}", path.parent.name] if with_folder else []
    return list(dict.fromkeys([label, *folders, path.name, path.stem]))


def _have_equal_names(labels: Sequence[str]) -> bool:
    return len({Path(label).name for label in labels}) < len(labels)
