"""A state that was written stays readable, whatever is appended, cut off or half-written later."""

import hashlib
import os
import random
import signal
import time

import pytest

from fedsdg.federation.prefixes import Damaged, Prefix, checked

FRAMES = [b"", b"a", b"bc" * 1000, b"\x00" * 17]


def plain(frames):
    """The bytes of a file with these frames, by the definition."""
    return b"".join(len(f).to_bytes(8, "little") + f for f in frames)


def test_frames_come_back_and_the_entry_describes_the_bytes(tmp_path):
    prefix, written = Prefix(tmp_path / "file"), []
    for frame in FRAMES:
        prefix = prefix.append([frame, b"and"])
        written += [frame, b"and"]
        content = plain(written)
        assert (tmp_path / "file").read_bytes() == content
        assert prefix.entry() == {
            "file": "file",
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        assert list(prefix.frames()) == written
        again = checked(tmp_path, prefix.entry())
        assert list(again.frames()) == written and again.entry() == prefix.entry()


def test_an_earlier_state_is_found_in_a_longer_file_and_gone_on_from(tmp_path):
    first = Prefix(tmp_path / "file").append([b"one"])
    second = first.append([b"two" * 100])
    assert list(first.frames()) == [b"one"]
    other = checked(tmp_path, first.entry()).append([b"three"])
    assert (tmp_path / "file").read_bytes() == plain([b"one", b"three"])
    assert list(other.frames()) == [b"one", b"three"]
    with pytest.raises(Damaged, match=f"has 24 bytes instead of {second.length}"):
        checked(tmp_path, second.entry())


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_damage_is_named(tmp_path, damage):
    prefix = Prefix(tmp_path / "file").append([b"one"])
    if damage == "missing":
        (tmp_path / "file").unlink()
    else:
        (tmp_path / "file").write_bytes(plain([b"two"]))
    expected = "other contents" if damage == "altered" else "is missing"
    with pytest.raises(Damaged, match=f"file .*{expected}|file {expected}"):
        checked(tmp_path, prefix.entry())


def test_what_fails_is_cut_off_again(tmp_path):
    prefix = Prefix(tmp_path / "file").append([b"one"])

    def frames():
        yield b"x" * 1_000_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefix.append(frames())
    assert (tmp_path / "file").read_bytes() == plain([b"one"])
    assert list(prefix.append([b"two"]).frames()) == [b"one", b"two"]


def test_killed_at_random_moments_of_an_append_the_state_before_is_there(tmp_path):
    """Real processes and SIGKILL; each goes on from what the one before has surely written."""
    chance, pieces = random.Random(0), 40
    state, within = Prefix(tmp_path / "file").append([b"begun"]), 0
    for attempt in range(25):
        # Forking takes as long as it takes: moments are counted from where the child begins.
        begun, begins = os.pipe()
        process = os.fork()
        if not process:
            os.write(begins, b"!")
            checked(tmp_path, state.entry()).append(
                bytes([attempt]) * 50_000 for _ in range(pieces) if time.sleep(0.0002) is None
            )
            os._exit(0)
        os.read(begun, 1)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(begun)
        os.close(begins)
        within += (tmp_path / "file").stat().st_size > state.length
        assert checked(tmp_path, state.entry()).entry() == state.entry()
        if attempt % 5 == 4:
            state = checked(tmp_path, state.entry()).append([bytes([attempt])])
    assert within >= 5
    assert list(state.frames()) == [b"begun", *(bytes([a]) for a in range(4, 25, 5))]
