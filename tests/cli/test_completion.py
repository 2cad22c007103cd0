"""What the shells are told: a real bash sources the script and is asked."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fedsdg.cli import main
from fedsdg.files.declarations import names

ROOT = Path(__file__).parents[2]
ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$(complete -p fedsdg | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Whoever completes has the script from the command itself."""
    import contextlib
    import io

    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["completion", "bash"]) == 0
    file = tmp_path_factory.mktemp("completion") / "fedsdg.bash"
    file.write_text(printed.getvalue())
    return file


def completions(script, *words) -> set[str]:
    command = ["bash", "--norc", "-c", ASK, "ask", str(script), "fedsdg", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["meth"], {"methods"}),
        (["methods", "scaf"], {"scaffold"}),
        (["run", "--see"], {"--seed"}),
        (["run", "--method", "scaf"], {"scaffold"}),
        (["methods", "show", "coord"], {"coordinate-median"}),
        (["run", "--dataset", "cifar"], {"cifar10", "cifar100"}),
        (
            ["run", "--config", "config/every"],
            {"config/every-condition.yaml", "config/every-method.yaml"},
        ),
        (["run", "--grid", "config/config.yaml", "config/cross-v"], {"config/cross-views.yaml"}),
        (["render", "attack"], {"attacks"}),
        (["render", "main", "gate"], {"gates", "gate_course"}),
        (["aggregate", "--rule", "multi"], {"multikrum"}),
        (["aggregate", "--on-nonfinite", ""], {"raise", "drop"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_bash_completes(words, wanted, script):
    assert completions(script, *words) == wanted


def test_all_methods_are_offered_where_one_is_asked_for(script):
    assert completions(script, "run", "--method", "") == set(names("methods")["methods"])


def test_zsh_is_told_the_same_names(capsys):
    assert main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef fedsdg")
    assert f"_fedsdg_METHOD() {{ compadd -- {' '.join(names('methods')['methods'])} }}" in text
    assert ":_fedsdg_NAME" in text and ":_files" in text
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=text, text=True, check=True)
