"""The doors for partitions: requests of every kind, and files that were damaged or forged."""

import hashlib
import io
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.data.datasets import image_data
from fedsdg.data.partition import (
    GLOBAL_TEST,
    TEST,
    TRAIN,
    VAL,
    PartitionSpec,
    parse_skew,
    partition_clients,
    read_partition,
    write_partition,
)
from fedsdg.data.partition_record import canonical_json

from .configs import ODD_SKEWS
from .outcomes import damaged, documented, pick

JUNK = [None, True, -1, 0, 1, 2**40, 10**400, 0.5, math.nan, math.inf, "text", [], {}, [1], "5"]
SKEWS = [
    "dirichlet~0.1", "dirichlet~1.0", "dirichlet~0.001", "dirichlet~100.0", "iid", "classes~1",
    "classes~2", "classes~3", "classes~9", "quantity~0.5", "quantity~0.01", "mixed~0.5~0.1",
    "domains", "column~writer", "column~none", "dirichlet~0." + "0" * 300 + "1",
]  # fmt: skip


def data_of(rng):
    """A labelled set without images worth the name."""
    n, classes = int(rng.integers(1, 120)), int(rng.integers(1, 6))
    labels = rng.integers(0, classes, size=n)
    if rng.random() < 0.3:
        labels = np.zeros(n, dtype=np.int64)
    domain = rng.integers(0, 3, size=n) if rng.random() < 0.4 else None
    official = np.zeros(n, dtype=bool)
    if rng.random() < 0.3:
        official[n - n // 5 :] = True
    return image_data(
        "blank", np.zeros((n, 2, 2), dtype=np.uint8), labels, classes, official, domain
    )


def check(rng):
    """One request for a partition; what is wrong with its outcome, or None."""
    try:
        data = data_of(rng)
    except ValueError as error:
        return documented(error)
    given = {
        "scheme": pick(rng, ["per-class", "per-client"]), "min_samples": int(rng.integers(3, 9)),
        "min_test": int(rng.integers(1, 4)), "retries": int(rng.integers(0, 9)),
        "test": pick(rng, ["fixed", "by-seed"]),
    }  # fmt: skip
    clients = int(rng.integers(1, 12))
    skew = pick(rng, SKEWS)
    if rng.random() < 0.3:
        skew = pick(rng, [*ODD_SKEWS, *JUNK])
    if rng.random() < 0.3:
        given[pick(rng, [*given, "fractions", "global_test"])] = pick(
            rng, [-1, 0, 1, 10**6, "text", 0.5, math.nan, (0.2, 0.2), (0.5, 0.5, 0.0), (1, 1, 1),
                  (0.1, 0.1, 0.8), 0.999, 1e-9]
        )  # fmt: skip
    if rng.random() < 0.1:
        clients = pick(rng, [0, -1, 10**6])
    labels = data.labels.copy()
    seed = int(rng.integers(100))
    made = []
    for _ in range(2):
        try:
            spec = PartitionSpec(**given)
            made.append(partition_clients(
                data, num_clients=clients, skew=parse_skew(skew), seed=seed, spec=spec,
                generator=np.random.default_rng(seed),
            ))  # fmt: skip
        except Exception as error:
            fault = documented(error)
            return fault and f"{fault} [{skew!r:.60}, {clients}, {given}, {len(labels)} samples]"
    one, again = made
    wrong = _wrong(one, data, clients, spec)
    if one.sha256 != again.sha256:
        wrong = "it differs the second time"
    if not np.array_equal(labels, data.labels):
        wrong = "the labels were altered"
    return wrong and f"{wrong} [{skew!r:.60}, {clients}, {given}, {len(labels)} samples]"


def _wrong(partition, data, clients, spec):
    """Every sample has one place, and every client what the specification asks for."""
    n = len(data.labels)
    if partition.client.shape != (n,) or not np.array_equal(partition.label, data.labels):
        return "other samples"
    everyone = [
        partition.indices(k, s).tolist() for k in range(clients) for s in (TRAIN, VAL, TEST)
    ]
    shared = partition.global_test().tolist()
    if sorted([*shared, *(i for part in everyone for i in part)]) != list(range(n)):
        return "a sample has no place, or two"
    if data.official_test.any():
        if shared != np.flatnonzero(data.official_test).tolist():
            return "another global test set than the official one"
    else:
        wanted = (math.ceil if spec.test == "fixed" else round)(spec.global_test * n)
        if len(shared) != wanted:
            return f"{len(shared)} samples in the global test set of {spec.global_test} · {n}"
    for k in range(clients):
        train, val, test = (len(part) for part in everyone[3 * k : 3 * k + 3])
        if train + val + test < spec.min_samples or min(train, val) < 1 or test < spec.min_test:
            return f"client {k} has {train}, {val}, {test} samples"
    if (partition.split == GLOBAL_TEST).sum() != len(shared):
        return "splits"
    return None


def written(folder):
    """The bytes of a partition's file, and what is in it."""
    labels = np.arange(120) % 4
    data = image_data("blank", np.zeros((120, 2, 2), dtype=np.uint8), labels, 4)
    made = partition_clients(
        data, num_clients=3, skew=parse_skew("dirichlet~1.0"), seed=0, spec=PartitionSpec(),
        generator=np.random.default_rng(0),
    )  # fmt: skip
    write_partition(made, folder / "right.parquet")
    return (folder / "right.parquet").read_bytes(), made


def forged(rng, raw):
    """Another file of the same form, its columns or facts changed; in half of them the hash fits
    again."""
    table = pq.read_table(io.BytesIO(raw))
    facts = json.loads(table.schema.metadata[b"fedsdg"])
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    how = int(rng.integers(6))
    if how == 0:
        facts[pick(rng, list(facts))] = pick(rng, JUNK)
    elif how == 1:
        facts.pop(pick(rng, list(facts)))
    elif how == 2:
        name = pick(rng, list(columns))
        columns[name][int(rng.integers(len(columns[name])))] = pick(
            rng,
            [None, "train", "no split"] if name == "split" else [None, -1, -2, 3, 99, 2**31 - 1],
        )
    elif how == 3:
        del columns[pick(rng, list(columns))]
    elif how == 4:
        kept = int(rng.integers(120))
        columns = {name: values[:kept] for name, values in columns.items()}
    else:
        facts |= {
            pick(rng, ["client_domain", "classes", "domains", "natural"]): pick(
                rng, [*JUNK, [0, 1, 2], {"names": ["a", "b", "c"]}, {"names": 3}, [[1], [2], [3]]]
            )
        }
    if rng.integers(2) and {"client", "split", "label"} <= set(columns):
        codes = {"train": 0, "val": 1, "test": 2, "global_test": 3, "left_out": 4}
        body = {k: v for k, v in facts.items() if k not in ("sizes", "class_counts", "sha256")}
        try:
            digest = hashlib.sha256(canonical_json(body))
            for name in ("client", "split", "label"):
                values = [codes.get(v, v) for v in columns[name]]
                digest.update(np.array(values).astype("<i4").tobytes())
            facts["sha256"] = digest.hexdigest()
        except (ValueError, TypeError, OverflowError):
            pass
    made = pa.table(columns).replace_schema_metadata({b"fedsdg": json.dumps(facts).encode()})
    file = io.BytesIO()
    pq.write_table(made, file)
    return file.getvalue()


def check_file(rng, folder, right):
    """One file that may be no partition; what is wrong with its outcome, or None."""
    raw, made = right
    how = pick(rng, [*["damaged"] * 3, *["forged"] * 3, "no file", "same"])
    path = folder / "partition.parquet"
    others = {"damaged": damaged, "forged": forged}
    path.write_bytes(others[how](rng, raw) if how in others else raw)
    if how == "no file":
        path = pick(rng, [folder, folder / "none", folder / ("x" * 300), "/dev/null"])
    wanted = made.dataset_sha256 if rng.integers(2) else None
    try:
        found = read_partition(path, expect_dataset_sha256=wanted)
    except Exception as error:
        fault = documented(error, kinds=(ValueError, FileNotFoundError))
        if how == "same":
            fault = f"refused: {error}"
        return fault and f"{fault} [{how}]"
    finally:
        (folder / "partition.parquet").unlink()
    same = found.facts() == made.facts() and all(
        np.array_equal(getattr(found, name), getattr(made, name))
        for name in ("client", "split", "label")
    )
    # A forged hash makes another partition of it, which can be one.
    whole = set(found.client.tolist()) <= set(range(-1, found.num_clients)) and set(
        found.label.tolist()
    ) <= set(range(found.num_classes))
    return None if same or (how == "forged" and whole) else f"taken, though it is another [{how}]"
