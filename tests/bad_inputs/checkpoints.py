"""The door for checkpoints: folders whose files were damaged, exchanged or lost."""

import itertools
import json
import shutil

from fedsdg.experiment.fingerprint import fingerprint
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from tests.experiment.small import setup_of, small_run

from .outcomes import damaged, documented, pick

MADE_FOR = {"run": {"seed": 0, "method": "scaffold"}, "sources": "abc"}
FEDERATION = {"clients": 5, "clients_per_round": 3, "rounds": 3}


class Kept:
    """A federation after each of two rounds, as it stood and as its checkpoints hold it."""

    def __init__(self, folder):
        self.setup = setup_of(small_run("scaffold", federation=FEDERATION))
        server, store = self.setup.initial()
        self.states = {0: fingerprint(server, store)}
        self.records = {}
        checkpoints = Checkpoints(folder / "right", MADE_FOR)
        rows = []
        for after, record in itertools.islice(rounds.run(self.setup, server, store), 2):
            rows.append(record.round)
            number = len(rows)
            self.records[number] = {"rounds": json.loads(json.dumps(rows))}
            self.states[number] = fingerprint(after, store)
            checkpoints.save(number, self.setup, after, store, self.records[number])
        files = sorted((folder / "right").glob("round~*"))
        self.files = {file.name: file.read_bytes() for file in files}


def change(rng, files):
    """Change one file."""
    name = pick(rng, list(files))
    how = pick(rng, ["gone", "other", *["damaged"] * 4])
    if files[name]:
        others = {"gone": None, "other": pick(rng, [b"{}", b"", b"\x80\x04."])}
        files[name] = damaged(rng, files[name]) if how == "damaged" else others[how]


def check(rng, folder, kept):
    """One restoring; what is wrong with its outcome, or None."""
    files = dict(kept.files)
    for _ in range(pick(rng, [0, 1, 1, 1, 2, 3])):
        change(rng, files)
    whole = [n for n, (name, raw) in enumerate(kept.files.items(), 1) if files[name] == raw]
    made_for = pick(rng, [MADE_FOR, MADE_FOR, MADE_FOR, {"run": {"seed": 1}}])
    folder.mkdir()
    for name, raw in files.items():
        if raw is not None:
            (folder / name).write_bytes(raw)
    server, store = kept.setup.initial()
    try:
        restored = Checkpoints(folder, made_for).restore(kept.setup, server, store)
    except Exception as error:
        if made_for == MADE_FOR:
            return f"refused: {error}"
        return documented(error)
    finally:
        shutil.rmtree(folder)
    if restored is None:
        return "nothing was found" if whole else None
    if made_for != MADE_FOR:
        return "taken for another run"
    number, server, records = restored
    if number != max(whole, default=0):
        return f"round {number}, but {whole} are whole"
    if records != kept.records[number] or fingerprint(server, store) != kept.states[number]:
        return "a state that never was"
    return None
