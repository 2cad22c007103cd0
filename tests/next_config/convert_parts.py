"""Convert the parts of a tree from @part to pydantic: the mechanical commit of the switch.

    python tests/next_config/convert_parts.py TREE

Works in place on TREE/fedsdg and prints the files that it changed. Afterwards ruff moves imports
that only annotations need below TYPE_CHECKING, sorts and formats. Run it once: a converted tree
has nothing left to convert.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("aggregation", "federation", "models", "data", "methods")
OLD_METHODS = "averaging clustered contribution families fedsdg lora personalised references robust"
NAMES = {
    "Adam": "adam",
    "AdamW": "adamw",
    "Sgd": "sgd",
    "Adagrad": "adagrad",
    "CrossEntropy": "cross-entropy",
    "Focal": "focal",
    "Gaussian": "gaussian",
    "SignFlip": "sign-flip",
    "Scaling": "scaling",
    "LittleIsEnough": "alie",
    "InnerProduct": "inner-product",
    "Replacement": "replacement",
    "BlindReplacement": "replacement-blind",
    "Corruption": "corruption",
    "LabelFlip": "label-flip",
}
KINDS = ("Attack", "Condition", "Loss", "RowOptimiser")
BASES = (*KINDS, "Rule", "Term", "Personalisation", "DataSharing")
TYPES = {"decoupled": "bool", "own_optimiser": "str", "gate_samples": "str"}
GONE = ("up", "down", "client_cost", "server_cost")
PHASES = ("Turn", "SHARED", "PRIVATE", "BOTH", "Phase")

#: What no general step covers: file below fedsdg, text, its replacement.
PATCHES = [
    ("aggregation/types.py", "State = Mapping[str, Tensor]", 'State = Mapping[str, "Tensor"]'),
    (
        "aggregation/rows.py",
        "StateDict = Mapping[Any, Tensor]",
        'StateDict = Mapping[Any, "Tensor"]',
    ),
    ("federation/optimisers.py", "Rate = Tensor | float", 'Rate = Union["Tensor", float]'),
    ("federation/optimisers.py", "Mapping[str, Tensor]\n", 'Mapping[str, "Tensor"]\n'),
    ("federation/optimisers.py", "import Annotated, ClassVar", "import Annotated, ClassVar, Union"),
    (
        "federation/optimisers.py",
        "from fedsdg.models import adam_step, root",
        "from fedsdg import models",
    ),
    ("federation/optimisers.py", " adam_step(", " models.adam_step("),
    ("federation/optimisers.py", " root(", " models.root("),
    (
        "federation/terms.py",
        "from fedsdg.models import sigmoid, views",
        "from fedsdg import models",
    ),
    ("federation/terms.py", " sigmoid(", " models.sigmoid("),
    ("federation/terms.py", " views(", " models.views("),
    ("federation/losses.py", "from torch.nn.functional import cross_entropy, log_softmax\n", ""),
    ("federation/losses.py", "cross_entropy(", "torch.nn.functional.cross_entropy("),
    ("federation/losses.py", "log_softmax(", "torch.nn.functional.log_softmax("),
    (
        "federation/data_sharing.py",
        "from fedsdg.federation.batches import Epochs, split_batches\n",
        "if TYPE_CHECKING:\n    from fedsdg.federation.batches import Epochs\n",
    ),
    (
        "federation/data_sharing.py",
        "    begin = sum(counts[:-1])",
        "    from fedsdg.federation.batches import split_batches\n\n    begin = sum(counts[:-1])",
    ),
    (
        "federation/data_sharing.py",
        "import Annotated, ClassVar",
        "import TYPE_CHECKING, Annotated, ClassVar",
    ),
    (
        "aggregation/rules/clusters.py",
        "from scipy.cluster.hierarchy import cut_tree, linkage\n"
        "from scipy.spatial.distance import cdist, squareform\n",
        "",
    ),
    (
        "aggregation/rules/clusters.py",
        "    condensed = squareform(",
        "    from scipy.cluster.hierarchy import cut_tree, linkage\n"
        "    from scipy.spatial.distance import squareform\n\n    condensed = squareform(",
    ),
    (
        "aggregation/rules/clusters.py",
        '        if self.nearness == "models":\n',
        "        from scipy.spatial.distance import cdist\n\n"
        '        if self.nearness == "models":\n',
    ),
    (
        "aggregation/rules/clusters.py",
        "        held, assignment = (state",
        "        from scipy.spatial.distance import cdist\n\n        held, assignment = (state",
    ),
    (
        "federation/conditions/quantisation.py",
        "from safetensors.numpy import save\n",
        "",
    ),
    (
        "federation/conditions/quantisation.py",
        "        count = int(trained_columns(layout).sum())",
        "        from safetensors.numpy import save\n\n"
        "        count = int(trained_columns(layout).sum())",
    ),
    (
        "federation/conditions/attack.py",
        "@dataclass(frozen=True)\nclass Attackers(Condition):",
        "class Attackers(Condition):",
    ),
    (
        "federation/conditions/attack.py",
        '    attack: Attack\n    share: float\n    "share of',
        "    attack: Annotated[Attack, Chosen(Attack)]\n"
        '    "what attackers send, or train on"\n    share: Share\n    "share of',
    ),
    (
        "federation/conditions/attack.py",
        "    def prepare(self, data: ClientData) -> ClientData:\n        \"\"\"Choose the attackers",
        '    @model_validator(mode="before")\n    @classmethod\n'
        "    def _of_a_config(cls, given: Any) -> Any:\n"
        '        """Let a config write {type: sign-flip, share: 0.2, scale: 3}."""\n'
        '        if not isinstance(given, Mapping) or "attack" in given:\n'
        "            return given\n"
        '        attack = {key: value for key, value in given.items() if key != "share"}\n'
        '        shares = {key: value for key, value in given.items() if key == "share"}\n'
        '        return {"attack": Chosen(Attack).read(attack), **shares}\n\n'
        "    def prepare(self, data: ClientData) -> ClientData:\n        \"\"\"Choose the attackers",
    ),
    (
        "federation/conditions/attack.py",
        "import TYPE_CHECKING, Annotated, ClassVar, Literal",
        "import TYPE_CHECKING, Annotated, Any, ClassVar, Literal",
    ),
    (
        "federation/conditions/attack.py",
        "from dataclasses import dataclass, replace\n",
        "from collections.abc import Mapping\nfrom dataclasses import dataclass, replace\n",
    ),
    (
        "models/cohort.py",
        "replace(self.config, alpha=float(self.config.rank))",
        "self.config.replaced(alpha=float(self.config.rank))",
    ),
    ("data/partition.py", "asdict(settings).items()", "dict(settings).items()"),
    (
        "aggregation/files.py",
        "**(asdict(made) if is_dataclass(made) else {})",
        "**made.model_dump()",
    ),
    (
        "aggregation/files.py",
        "import asdict, dataclass, field, is_dataclass",
        "import dataclass, field",
    ),
    (
        "aggregation/rule_table.py",
        "from fedsdg.parts import Declared, checked, parameters, replaced, shown",
        "from fedsdg.next_errors import hint, shortened\n"
        "from fedsdg.next_parts import checked, parameters, with_parameters",
    ),
    ("aggregation/rule_table.py", "from fedsdg.files import hint\n", ""),
    ("aggregation/rule_table.py", "shown(", "shortened("),
    ("aggregation/rule_table.py", "replaced(", "with_parameters("),
    ("aggregation/rule_table.py", "Declared", "FieldInfo"),
    (
        "aggregation/rule_table.py",
        "from typing import Any, NamedTuple\n",
        "from typing import Any, NamedTuple\n\nfrom pydantic.fields import FieldInfo\n",
    ),
    (
        "aggregation/server_aggregate.py",
        "options = (epsilon, reference, transform, temperature, max_weight, smoothing)",
        "names = "
        '("epsilon", "reference", "transform", "temperature", "max_weight", "smoothing")\n'
        "    given = (epsilon, reference, transform, temperature, max_weight, smoothing)\n"
        "    options = dict(zip(names, given, strict=True))",
    ),
    ("aggregation/server_aggregate.py", "Alignment(*options,", "Alignment(**options,"),
    (
        "../tests/aggregation/test_rules.py",
        "    def __init__(self, plan):\n        self.returned = plan\n",
        "    returned: Any\n",
    ),
    ("../tests/aggregation/test_rules.py", "Faulty(plan)(", "Faulty(returned=plan)("),
    (
        "../tests/aggregation/test_rules.py",
        "import numpy as np\n",
        "from typing import Any\n\nimport numpy as np\n",
    ),
    (
        "../tests/aggregation/test_doors.py",
        "rule krum: unknown key",
        "rule krum has an unknown key",
    ),
    ("methods/families.py", "fedsdg.methods.method", "fedsdg.next_methods.method"),
]
PHASES_MODULE = '''"""The phases of a client's training in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsdg.federation.terms import Term

'''


class Edits:
    """Replacements of spans in a text, applied from its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.spans: list[tuple[int, int, str]] = []
        lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line.encode()))

    def replace(self, node: ast.AST, new: str) -> None:
        """Put a text in the place of a node."""
        begin = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        self.spans.append((begin, end, new))

    def insert(self, node: ast.AST, new: str) -> None:
        """Put a text before a node."""
        begin = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        self.spans.append((begin, begin, new))

    def append(self, node: ast.AST, new: str) -> None:
        """Put a text behind a node."""
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        self.spans.append((end, end, new))

    def line(self, number: int, new: str) -> None:
        """Put a text in the place of a whole line."""
        self.spans.append((self._starts[number - 1], self._starts[number], new))

    def applied(self) -> str:
        """Return the text with all replacements."""
        raw = self.text.encode()
        for begin, end, new in sorted(self.spans, reverse=True):
            raw = raw[:begin] + new.encode() + raw[end:]
        return raw.decode()


def is_part(node: ast.AST) -> bool:
    """Whether a class is declared by @part."""
    return isinstance(node, ast.ClassDef) and "part" in map(ast.unparse, node.decorator_list)


def fields_of_parts(
    files: list[Path], known: dict[str, list[str]] | None = None
) -> dict[str, list[str]]:
    """Return the fields of every part, those of its bases first, besides those known."""
    own: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if is_part(node) or (isinstance(node, ast.ClassDef) and node.name == "Attackers"):
                names = [
                    entry.target.id
                    for entry in node.body
                    if isinstance(entry, ast.AnnAssign)
                    and isinstance(entry.target, ast.Name)
                    and "ClassVar" not in ast.unparse(entry.annotation)
                ]
                own[node.name] = ([ast.unparse(base) for base in node.bases], names)

    def all_of(name: str) -> list[str]:
        if name not in own:
            return (known or {}).get(name, [])
        bases, names = own[name]
        return [*(field for base in bases for field in all_of(base)), *names]

    return {**(known or {}), **{name: all_of(name) for name in own}}


def constraint(node: ast.Call) -> str:
    """Return the keywords of Field that say what Range(least, most) says."""
    ends = [ast.unparse(argument) for argument in node.args]
    return ", ".join(f"{key}={end}" for key, end in zip(("ge", "le"), ends, strict=False))


def annotation(kind: ast.expr, limits: str) -> str:
    """Return a type with its limits, as pydantic writes them."""
    if isinstance(kind, ast.BinOp):
        return f"{annotation(kind.left, limits)} | {annotation(kind.right, limits)}"
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "tuple":
        assert isinstance(kind.slice, ast.Tuple)
        return f"Several[{annotation(kind.slice.elts[0], limits)}]"
    text = ast.unparse(kind)
    if text not in ("int", "float") or not limits:
        return text
    short = {"int ge=1": "Count", "float ge=0, le=1": "Share"}
    return short.get(f"{text} {limits}", f"Annotated[{text}, Field({limits})]")


def convert(text: str, fields: dict[str, list[str]]) -> str:
    """Return a module with parts that are declared the new way."""
    edits = Edits(text)
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.ClassDef):
            _convert_class(node, edits)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            assert isinstance(node.slice, ast.Tuple)
            calls = [one for one in node.slice.elts[1:] if isinstance(one, ast.Call)]
            names = [ast.unparse(one.func) for one in calls]
            if set(names) & {"Range", "Absent"}:
                limits = [constraint(c) for c, n in zip(calls, names, strict=True) if n == "Range"]
                edits.replace(node, annotation(node.slice.elts[0], "".join(limits)))
    text = positional(edits.applied(), fields)
    names = ("Chosen", "Count", "Ends", "Part", "Several", "Share")
    new = [name for name in names if used(name, text) and name not in bound(text)]
    text = re.sub(
        r"from fedsdg\.parts import [^\n]*\n",
        f"from fedsdg.next_parts import {', '.join(new)}\n" if new else "",
        text,
    )
    if "shown(" in text:
        text = text.replace("shown(", "shortened(")
        text = add_import(text, "from fedsdg.next_errors import shortened")
    if new and "fedsdg.next_parts" not in text:
        text = add_import(text, f"from fedsdg.next_parts import {', '.join(new)}")
    for name in ("Field", "model_validator"):
        if used(name, text):
            text = add_import(text, f"from pydantic import {name}")
    return text


def positional(text: str, fields: dict[str, list[str]]) -> str:
    """Return a module that names the fields when it makes a part."""
    edits = Edits(text)
    steps = {  # A step is called TrimmedMean, too.
        alias.asname or alias.name
        for node in ast.walk(edits.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "fedsdg.aggregation.types"
        for alias in node.names
    }
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.Call):
            module, _, name = ast.unparse(node.func).rpartition(".")
            if module.startswith("torch") or module == "types" or name in steps:
                continue
            for argument, field in zip(node.args, fields.get(name, ()), strict=False):
                if not isinstance(argument, ast.Starred):
                    edits.insert(argument, f"{field}=")
    return edits.applied()


def used(name: str, text: str) -> bool:
    """Whether a name stands in the code of a module, outside of strings."""
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(ast.parse(text)))


def bound(text: str) -> set[str]:
    """Return what a module defines or imports itself, before names of parts are added."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom) and node.module != "fedsdg.parts":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _convert_class(node: ast.ClassDef, edits: Edits) -> None:
    base = node.name in BASES and not node.bases
    if not is_part(node) and not base:
        return
    for decorator in node.decorator_list:
        edits.line(decorator.lineno, "")
    bases = [ast.unparse(one) for one in node.bases] or ["Part"]
    if node.name in NAMES:
        bases.append(f'name="{NAMES[node.name]}"')
    if node.name in KINDS:
        bases.append("kind=True")
    edits.line(node.lineno, f"class {node.name}({', '.join(bases)}):\n")
    for entry in node.body:
        if isinstance(entry, ast.FunctionDef) and entry.name == "__post_init__":
            edits.line(entry.lineno, "    def check_fields(self) -> None:\n")
        if isinstance(entry, ast.AnnAssign) and ast.unparse(entry.target) in TYPES:
            edits.append(entry, "  # type: ignore[misc]")  # A field in place of a class variable.
        if isinstance(entry, ast.Assign):
            target = ast.unparse(entry.targets[0])
            if target in TYPES:
                edits.replace(entry.targets[0], f"{target}: ClassVar[{TYPES[target]}]")


def add_import(text: str, line: str) -> str:
    """Return a module with one more import, which ruff sorts later."""
    first = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and getattr(node, "module", "") != "__future__"
    )
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, f"{line}\n")
    return "".join(lines)


def without_costs(text: str) -> str:
    """Return rows of methods without what they send and compute, which is measured."""
    edits = Edits(text)
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Method":
            for keyword in node.keywords:
                if keyword.arg in GONE:
                    for number in range(keyword.lineno, keyword.end_lineno + 1):
                        edits.line(number, "")
    return edits.applied().replace("fedsdg.methods.method", "fedsdg.next_methods.method")


def lazily(text: str) -> str:
    """Return a module that imports torch when it first computes."""
    if "from __future__ import annotations" not in text:
        end = ast.parse(text).body[0].end_lineno or 0
        lines = text.splitlines(keepends=True)
        lines.insert(end, "\nfrom __future__ import annotations\n")
        text = "".join(lines)
    return re.sub(r"^import torch$", "from fedsdg.next_lazy import torch", text, flags=re.M)


def with_phases(text: str) -> str:
    """Return a module that imports phases from where they are now."""
    pattern = re.compile(
        r"^( *)from fedsdg\.federation\.tasks import (?:\(([^)]*)\)|([^\n]*))$", re.M
    )

    def divided(match: re.Match[str]) -> str:
        names = [name.strip() for name in (match[2] or match[3]).split(",") if name.strip()]
        lines = []
        for module, part in (
            ("phases", [name for name in names if name in PHASES]),
            ("tasks", [name for name in names if name not in PHASES]),
        ):
            if part:
                lines.append(f"{match[1]}from fedsdg.federation.{module} import {', '.join(part)}")
        return "\n".join(lines)

    return pattern.sub(divided, text)


def divide_tasks(package: Path) -> None:
    """Give phases a module of their own, since personalisations consist of them."""
    file = package / "federation/tasks.py"
    text = file.read_text()
    begin, end = text.index("Turn = tuple"), text.index("@dataclass(frozen=True)\nclass Samples")
    first, last = (
        text.index("@dataclass(frozen=True)\nclass Phase"),
        text.index("@dataclass(frozen=True)\nclass Work"),
    )
    phases = PHASES_MODULE + text[begin:end] + text[first:last]
    (package / "federation/phases.py").write_text(f"{phases.rstrip()}\n")
    rest = text[:begin] + text[end:first] + text[last:]
    names = [name for name in PHASES if used(name, rest)]
    rest = add_import(rest, f"from fedsdg.federation.phases import {', '.join(names)}")
    file.write_text(rest)


RULES = (
    "alignment cgsv cgsv_xu clusters compensated fedcurv focus geometric_median krum mean median "
    "multikrum neighbours no_aggregation scaffold screened trimmed_mean"
)
CONDITIONS = "attack compute condition difference dropout label_noise quantisation"
FEDERATION = "terms losses optimisers personalisation data_sharing stopping phases"
LAZY = [
    f"{folder}/{name}.py"
    for folder, names in (
        ("aggregation", "rows statistics types weights"),
        ("aggregation/rules", RULES),
        ("federation", FEDERATION),
        ("federation/conditions", CONDITIONS),
    )
    for name in names.split()
]


def python_files(package: Path) -> Iterator[Path]:
    """Yield the modules of the rooms that have parts, and of the rows of methods."""
    for room in ROOMS:
        for file in sorted((package / room).rglob("*.py")):
            if room != "methods" or file.stem in OLD_METHODS.split():
                yield file


def main() -> None:
    """Convert the tree that the command line names."""
    tree = Path(sys.argv[1]).resolve()
    package = tree / "fedsdg"
    divide_tasks(package)
    files = list(python_files(package))
    fields = fields_of_parts(files)
    before = {file: file.read_text() for file in files}
    for below, old, new in PATCHES:
        file = package / below
        text = file.read_text()
        if old not in text:
            raise SystemExit(f"{file} has no {old!r}; correct PATCHES")
        file.write_text(text.replace(old, new))
    for file in files:
        text = convert(with_phases(file.read_text()), fields)
        text = text.replace("super().__post_init__()", "super().check_fields()")
        text = re.sub(r"\bRowOptimiser\b", "Optimiser", text)
        if file.parent.name == "methods":
            text = without_costs(text)
        if file.relative_to(package).as_posix() in LAZY:
            text = lazily(text)
        file.write_text(text)
    tests = [file for room in ROOMS[:-1] for file in (tree / "tests" / room).rglob("*.py")]
    for file in sorted(tests):
        text = file.read_text()
        divided = with_phases(text)
        declares = "from fedsdg.parts import" in divided
        if declares:
            new = convert(divided, fields_of_parts([*files, file], fields))
        else:
            new = positional(divided, fields)
        new = re.sub(r"\bRowOptimiser\b", "Optimiser", new)
        if new != text:
            file.write_text(new)
            print(file)
    lazy = [str(package / name) for name in LAZY]
    changed = [str(file) for file in files if file.read_text() != before[file]]
    ruff = [sys.executable, "-m", "ruff"]
    setting = "lint.flake8-type-checking."
    exempt = f"{setting}exempt-modules=['typing','pydantic','fedsdg.next_parts']"
    typing = ["--select", "TC001,TC002", "--fix", "--unsafe-fixes", "-q", "--config", exempt]
    typing += ["--config", f"{setting}strict=true"]
    subprocess.run([*ruff, "check", *typing, *lazy], cwd=tree, check=False)
    subprocess.run([*ruff, "check", "--select", "F401,I", "--fix", "-q", *changed], cwd=tree)
    subprocess.run([*ruff, "format", "-q", *changed], cwd=tree, check=False)
    print("\n".join(changed))


if __name__ == "__main__":
    main()
