"""Put the second edition of benchmarks in the first one's place: once, at the root.

Expects that analysis is in its place (no `next_analysis`).
Prints what it could not do, which is to be done by hand; `SWITCH.md` says what remains besides.
"""

import re
import subprocess
from pathlib import Path

NEW = Path("benchmarks/next_benchmarks")
OLD_TESTS = Path("tests/benchmarks")
TOOLS = Path("tests/tools")
FROM_SWITCH = {
    "speed.py.txt": "fedsdg/analysis/speed.py",
    "test_speed.py.txt": "tests/analysis/test_speed.py",
    "performance.smk": "workflow/rules/performance.smk",
    "test_performance.py.txt": "tests/workflow/test_performance.py",
    "benchmarks.md": "docs/benchmarks.md",
    "gpu.md": "docs/gpu.md",
}
#: Words of moved files, and what stands for them.
RENAMED = {
    "benchmarks.next_benchmarks": "benchmarks",
    "benchmarks/next_benchmarks": "benchmarks",
}
TO_TOOLS = {
    "Path(__file__).parents[1]": "Path(__file__).parents[2]",
    "from benchmarks.regression import checked_out": "from benchmarks.compare import checked_out",
    "python -m benchmarks.": "python -m tests.tools.",
    "from benchmarks import same_bytes": "from tests.tools import same_bytes",
    "from benchmarks.planted": "from tests.tools.planted",
    "from benchmarks.same_bytes": "from tests.tools.same_bytes",
}
SPEED = """    if "speed" in name:
        from fedsdg.analysis.speed import write_speed

        written += write_speed(measured, folder, drawn)
"""
#: File, what stands there, and what is to stand there.
EDITS = (
    ("fedsdg/cli/rendering.py", '"kernels", "throughput", "page"', '"speed", "page"'),
    (
        "fedsdg/cli/rendering.py",
        "`kernels` and `throughput` show what `make bench` measured;",
        "`speed` shows what `make bench` measured;",
    ),
    ("fedsdg/cli/rendering.py", "measurements for kernels and throughput", "measurements of speed"),
    (
        "fedsdg/cli/rendering.py",
        '    for kind in ("kernels", "throughput"):\n        if kind in name:\n'
        "            written += _write_speed(kind, measured, folder, drawn)\n",
        SPEED,
    ),
    ("fedsdg/cli/rendering.py", '"kernels.md", "throughput.md"', '"speed.md"'),
    (
        "fedsdg/analysis/render.py",
        "from fedsdg.analysis.speed import Measurements, kernels, throughput",
        "from fedsdg.analysis.speed import Measurements, speed",
    ),
    ("fedsdg/analysis/render.py", "for make in (kernels, throughput):", "for make in (speed,):"),
    (
        "tests/analysis/test_render.py",
        '{f"{below}/performance/{n}.md" for n in ("kernels", "throughput")}',
        '{f"{below}/performance/speed.md"}',
    ),
    ("workflow/rules/common.smk", '"kernels": [', '"speed": ['),
    ("tests/workflow/conftest.py", "/roofline", "/{{page}}"),
    ("tests/cli/test_help.py", '    ("render throughput --measured x --output y", ""),\n', ""),
    ("tests/cli/test_help.py", "render kernels", "render speed"),
    ("tests/documents/test_everything.py", "from benchmarks.study import PARTS\n", ""),
    (
        "tests/documents/test_everything.py",
        "{Path(part.configs[-1]).name for part in PARTS}",
        '{file.stem for file in ROOT.glob("config/cross-*.yaml")}',
    ),
    (
        ".github/workflows/ci.yml",
        'bench-regression BASE="$BASE"',
        'bench-compare BASE="$BASE" QUICK=1',
    ),
    ("docs/running.md", "python -m benchmarks.rounding", "python -m tests.tools.rounding"),
    (
        "docs/aggregate.md",
        "`python benchmarks/files_memory.py` measures memory and time, by default for 200 clients "
        "with 50 million parameters.",
        "`make bench` measures memory and time for 4 GB of files.",
    ),
    ("fedsdg/experiment/replay.py", "benchmarks/rounding.py", "tests/tools/rounding.py"),
    (
        "fedsdg/experiment/comparing/__init__.py",
        "benchmarks/rounding.py",
        "tests/tools/rounding.py",
    ),
    ("config/README.md", "`make study`", "`fedsdg run --grid NAME`"),
    (
        "pyproject.toml",
        'markers = ["slow: takes more than three seconds; `make test-fast` leaves it out"]',
        'markers = [\n    "slow: takes more than three seconds; `make test-fast` leaves it out",\n'
        '    "cuda: needs a GPU",\n]',
    ),
    (
        "pyproject.toml",
        '    "pandas-stubs",\n',
        '    "pandas-stubs",\n    "psutil", # how busy others are\n',
    ),
    ("pyproject.toml", '    "llvmlite.*",\n', '    "flwr.*",\n    "llvmlite.*",\n'),
    ("pyproject.toml", '    "peft.*",\n', '    "peft.*",\n    "psutil.*",\n'),
    (
        "pyproject.toml",
        '"benchmarks/**" = ["D101", "D102", "D103", "D104", "D105", "D106", "D2", "D3", "D4"]\n',
        "",
    ),
    ("Makefile", "PAIRS ?= 7\nLENGTH ?= 60\nMINUTES ?= 25\n", ""),
    ("Makefile", "; for bench-runs so many pairs and rounds: docs/benchmarks.md", ""),
    ("Makefile", "everything study search", "everything search"),
    (
        "Makefile",
        "bench bench-compare bench-regression bench-runs gate",
        "bench bench-compare gate",
    ),
)
GONE_TARGETS = ("study", "bench-regression", "bench-runs", "same-tables")


def git(*words: str | Path) -> None:
    """Call git."""
    subprocess.run(["git", *map(str, words)], check=True)


def tracked(folder: Path) -> list[Path]:
    """Return the files of a folder that git knows."""
    words = ["git", "ls-files", str(folder)]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.splitlines()]


def rewrite(file: Path, words: dict[str, str]) -> None:
    """Replace words of a file."""
    text = file.read_text(encoding="utf-8")
    for old, new in words.items():
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def move_files() -> None:
    """Move and delete files, and rewrite what refers to their places."""
    for name in ("same_bytes.py", "same_bytes.yaml", "planted.py", "rounding.py"):
        git("mv", Path("benchmarks", name), TOOLS / name)
    for name in ("test_same_bytes.py", "test_planted.py"):
        git("mv", OLD_TESTS / name, TOOLS / name)
    for file in TOOLS.glob("*.py"):
        rewrite(file, TO_TOOLS)
    for file in tracked(Path("benchmarks")):
        if NEW not in file.parents and file.name != "requirements.txt":
            git("rm", "--quiet", file)
    for file in tracked(OLD_TESTS):
        git("rm", "--quiet", file)
    for name, place in FROM_SWITCH.items():
        Path(place).write_bytes((NEW / "switch" / name).read_bytes())
        git("add", place)
    OLD_TESTS.mkdir(parents=True, exist_ok=True)
    for file in tracked(Path("tests/next_benchmarks")):
        if file.name == "__init__.py":
            git("rm", "--quiet", file)
        else:
            git("mv", file, OLD_TESTS / file.name)
    for file in tracked(NEW):
        if file.parent == NEW:
            git("mv", file, Path("benchmarks", file.name))
    for file in (*Path("benchmarks").glob("*.*"), *OLD_TESTS.glob("*.py")):
        rewrite(file, RENAMED)
    for name in ("compare", "on_gpu"):
        rewrite(Path(f"benchmarks/{name}.py"), {"parents[2]": "parents[1]"})
    rewrite(
        OLD_TESTS / "test_commands.py",
        {'    command += [f"--confcutdir={FOLDER}", ': "    command += ["},
    )


def replace_targets() -> None:
    """Replace the recipes of the Makefile by those of targets.mk."""
    makefile = Path("Makefile")
    text = makefile.read_text(encoding="utf-8")
    recipe = r"(?m)^{}:[^\n]*\n(?:\t[^\n]*\n)*"
    for name in GONE_TARGETS:
        text = re.sub(recipe.format(name), "", text)
    for new in re.findall(recipe.format("[a-z-]+"), (NEW / "switch/targets.mk").read_text()):
        text = re.sub(recipe.format(new.partition(":")[0]), lambda _, new=new: new, text)
    makefile.write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")


def edit_callers() -> None:
    """Edit what refers to the first edition; print what is not there."""
    for name, old, new in EDITS:
        file = Path(name)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if old not in text:
            print(f"by hand: {name} has no {old!r}")
            continue
        file.write_text(text.replace(old, new), encoding="utf-8")
    rendering = Path("fedsdg/cli/rendering.py")
    text = rendering.read_text(encoding="utf-8")
    rendering.write_text(re.sub(r"def _write_speed\(.*?\n\n\n(?=def )", "", text, flags=re.DOTALL))
    for file in Path("config").glob("*.yaml"):
        rewrite(file, {"make study": f"fedsdg run --grid {file.stem}"})
    for file in tracked(Path("tests")):
        if file.suffix == ".py":
            skip = '@pytest.mark.skipif(not {}, reason="needs a GPU")'
            known = [skip.format(told) for told in ("torch.cuda.is_available()", "HAS_GPU")]
            rewrite(file, {line: f"@pytest.mark.cuda\n{line}" for line in known})


if __name__ == "__main__":
    replace_targets()
    move_files()
    edit_callers()
    git("rm", "-r", "--quiet", NEW / "switch")
