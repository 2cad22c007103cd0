"""Flat parameter matrices, and named views of them with a leading client axis.

The communicated parameters of M clients are the rows of one matrix [M, d]. Every named tensor is a
view of that matrix, so a client's update is ready for the server without a copy.
"""

from __future__ import annotations

import fnmatch
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from torch import Tensor

# torch prefers gradients without gaps; these are columns of one matrix on purpose.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")

Group = Literal["shared", "private", "gate", "own", "frozen"]

#: Stands for the number of a block in the name of a parameter that every block has.
EVERY_BLOCK = "blocks.*"
_BLOCK = re.compile(r"^blocks\.\d+(?=\.)")


@dataclass(frozen=True)
class ParameterSpec:
    """One named parameter of one client."""

    name: str
    "timm's name with a suffix, such as `blocks.0.attn.proj.lora_A`"
    shape: tuple[int, ...]
    "without the client axis; () for a scalar"
    group: Group
    """the learning rate: `shared` η_g, `private` η_p, `gate` η_m, `own` η_g again, for a client's
    copy of a communicated parameter; `frozen`: one draw, the same for all clients"""
    trainable: bool = True
    """False: the parameter keeps its value; a communicated one is not sent either (see
    `Layout.of_round`)"""

    @property
    def size(self) -> int:
        """Number of scalars; 1 for shape ()."""
        return math.prod(self.shape)

    @property
    def of_head(self) -> bool:
        """Whether the parameter belongs to a head."""
        return self.name.startswith("head.")

    def frozen(self) -> ParameterSpec:
        """Return the same parameter, frozen."""
        return replace(self, group="frozen", trainable=False)


@dataclass(frozen=True)
class Layout:
    """Order of the parameters in a communicated row [d] and in a private row [d_private]."""

    communicated: tuple[ParameterSpec, ...]
    private: tuple[ParameterSpec, ...]
    turns: tuple[str, ...] = ()
    """suffixes of communicated parameters that train in turns, one suffix a round; all other
    parameters train in every round"""

    def with_own(self, *patterns: str) -> Layout:
        """Return the layout in which every client keeps some parameters for itself.

        They move from the communicated row to the start of the private one, and keep their names
        and their learning rate.

        Args:
            *patterns: of their names, such as `*.bias`.

        Raises:
            ValueError: no communicated parameter has such a name, or some blocks' alone would move.
        """
        specs = {spec.name: spec for spec in self.communicated}
        own: set[str] = set()
        for pattern in patterns:
            matches = fnmatch.filter(specs, pattern)
            if not matches:
                names = ", ".join(dict.fromkeys(_BLOCK.sub(EVERY_BLOCK, name) for name in specs))
                raise ValueError(f"no parameter is called {pattern!r}; the model has {names}")
            own.update(matches)
        kept = tuple(specs.pop(name) for name in [*specs] if name in own)
        kinds = [{_BLOCK.sub(EVERY_BLOCK, name) for name in names} for names in (own, specs)]
        for name in sorted(set.intersection(*kinds)):
            raise ValueError(f"{name} is stacked, and own in all blocks or in none; take {name!r}")
        return Layout(tuple(specs.values()), (*kept, *self.private), self.turns)

    def of_round(self, *rounds: int) -> Layout:
        """Return the layout of a round, counted from 1.

        Args:
            *rounds: the round; of several rounds, a parameter is trainable if it trains in any.

        Returns:
            The layout, in which parameters that rest are not trainable.
        """
        if not self.turns:
            return self
        turns = {(round_ - 1) % len(self.turns) for round_ in rounds}
        resting = tuple(suffix for turn, suffix in enumerate(self.turns) if turn not in turns)
        return Layout(
            tuple(
                replace(spec, trainable=False) if spec.name.endswith(resting) else spec
                for spec in self.communicated
            ),
            self.private,
        )

    def of_copy(self, head_alone: bool) -> Layout:
        """Return the layout of a copy that a client tunes before an evaluation.

        A frozen head is trained, at η_g, since nothing of a copy is sent.

        Args:
            head_alone: no parameter but the head's is trained.

        Returns:
            The layout of the copy.
        """

        def tuned(spec: ParameterSpec) -> ParameterSpec:
            if spec.of_head and spec.group == "frozen":
                return replace(spec, group="own", trainable=True)
            return replace(spec, trainable=spec.trainable and (spec.of_head or not head_alone))

        return Layout(
            tuple(tuned(spec) for spec in self.communicated),
            tuple(tuned(spec) for spec in self.private),
            self.turns,
        )

    @property
    def d(self) -> int:
        """Number of communicated scalars of a client (0 for `local-only`)."""
        return sum(spec.size for spec in self.communicated)

    @property
    def before_head(self) -> int:
        """Number of communicated scalars before the head, which comes last."""
        return sum(spec.size for spec in self.communicated if not spec.of_head)

    @property
    def d_private(self) -> int:
        """Number of scalars that a client does not send."""
        return sum(spec.size for spec in self.private)

    @property
    def own_parameters(self) -> int:
        """Number of scalars in which clients may differ: the private ones that are not frozen."""
        return sum(spec.size for spec in self.private if spec.group != "frozen")

    @property
    def trains_private(self) -> bool:
        """Whether a client trains a private parameter."""
        return any(spec.trainable for spec in self.private)

    @property
    def global_model(self) -> bool:
        """Whether the communicated and the frozen parameters alone are a model.

        They are not where clients keep something that every model needs: the head, a factor of the
        adapters, or (`local-only`) everything.
        """
        return all(spec.group != "shared" for spec in self.private)


def offsets(specs: Sequence[ParameterSpec]) -> dict[str, slice]:
    """Return the columns of every parameter in a flat row, by name."""
    columns = {}
    start = 0
    for spec in specs:
        columns[spec.name] = slice(start, start + spec.size)
        start += spec.size
    return columns


def views(matrix: Tensor, specs: Sequence[ParameterSpec]) -> dict[str, Tensor]:
    """Return a named view [M, *shape] of every parameter, for files and for single parameters.

    Args:
        matrix: [M, d]; the views share its storage.
        specs: the parameters of a row, in order.

    Returns:
        Name -> view.

    Raises:
        ValueError: `matrix` does not have as many columns as the parameters have scalars.
    """
    _require_width(matrix, specs)
    columns = offsets(specs)
    return {s.name: matrix[:, columns[s.name]].view(len(matrix), *s.shape) for s in specs}


def block_views(matrix: Tensor, specs: Sequence[ParameterSpec]) -> dict[str, Tensor]:
    """Return views for computing: as `views`, with the parameters of all blocks stacked.

    Blocks are alike, so the same parameter of consecutive blocks is equally many columns apart, and
    one strided view holds them all: `blocks.*.attn.proj.lora_A` [M, blocks, r, in]. Models take
    their parameters under these names, which spares them a loop over blocks.

    Args:
        matrix: [M, d]; the views share its storage.
        specs: the parameters of a row, in order.

    Returns:
        Name -> view [M, blocks, *shape], or [M, *shape] outside of blocks.

    Raises:
        ValueError: `matrix` has another width than the parameters, or blocks differ.
    """
    _require_width(matrix, specs)
    named = {}
    for kind in _kinds(tuple(specs)):
        size = kind.spec.size
        columns = matrix[:, kind.first : kind.first + (kind.blocks - 1) * kind.step + size]
        stacked = kind.spec.name.startswith(EVERY_BLOCK)
        shape = (kind.blocks, *kind.spec.shape) if stacked else kind.spec.shape
        named[kind.spec.name] = columns.unfold(1, size, kind.step).view(len(matrix), *shape)
    return named


def block_specs(specs: Sequence[ParameterSpec]) -> tuple[ParameterSpec, ...]:
    """Return the parameters that `block_views` names, each with the shape of one block."""
    return tuple(kind.spec for kind in _kinds(tuple(specs)))


def leaves(
    matrix: Tensor, gradients: Tensor | None, specs: Sequence[ParameterSpec]
) -> dict[str, Tensor]:
    """Return leaf tensors named as by `block_views`, whose `.grad` are views of `gradients`.

    `backward()` then accumulates into `gradients`. Set that matrix to zero with
    `gradients.zero_()`: an optimiser's `zero_grad()` would replace the views. Slices of one leaf
    matrix would each allocate a whole matrix of zeros in the backward pass.

    Args:
        matrix: [M, d]; the leaves share its storage.
        gradients: [M, d] of the same type and device, or None where nothing is trained.
        specs: the parameters of a row, in order; only trainable ones get a gradient.

    Returns:
        Name -> leaf.

    Raises:
        ValueError: a matrix has another width than the parameters, or blocks differ.
    """
    values = block_views(matrix.detach(), specs)
    if gradients is None:
        return values
    slopes = block_views(gradients, specs)
    for spec in block_specs(specs):
        if spec.trainable:
            leaf = values[spec.name].requires_grad_()
            leaf.grad = slopes[spec.name]
    return values


def only_trained(matrix: Tensor, layout: Layout) -> Tensor:
    """Return a copy of communicated rows with 0 for parameters that are not trained.

    Args:
        matrix: [M, d].
        layout: of the round; see `Layout.of_round`.

    Returns:
        [M, d].
    """
    copied = matrix.clone()
    columns = offsets(layout.communicated)
    for spec in layout.communicated:
        if not spec.trainable:
            copied[:, columns[spec.name]] = 0
    return copied


class _Kind(NamedTuple):
    """A parameter of every block: its first column, number of blocks, columns between two."""

    spec: ParameterSpec
    first: int
    blocks: int
    step: int


@lru_cache(maxsize=64)
def _kinds(specs: tuple[ParameterSpec, ...]) -> tuple[_Kind, ...]:
    columns = offsets(specs)
    starts: dict[ParameterSpec, list[int]] = {}
    for spec in specs:
        stacked = replace(spec, name=_BLOCK.sub(EVERY_BLOCK, spec.name))
        starts.setdefault(stacked, []).append(columns[spec.name].start)
    kinds = []
    for spec, first in starts.items():
        step = first[1] - first[0] if len(first) > 1 else spec.size
        regular = first == [first[0] + step * block for block in range(len(first))]
        alone = sum(spec.name == other.name for other in starts) == 1
        if not (regular and alone):
            raise ValueError(
                f"the parameters {spec.name} of the blocks differ or are not equally far apart: "
                "take the layout of a model"
            )
        kinds.append(_Kind(spec, first[0], len(first), step))
    return tuple(kinds)


def _require_width(matrix: Tensor, specs: Sequence[ParameterSpec]) -> None:
    width = sum(spec.size for spec in specs)
    if matrix.dim() != 2 or matrix.shape[1] != width:
        raise ValueError(
            f"the parameters need a matrix [clients, {width}], got shape {tuple(matrix.shape)}: "
            "make it from the same layout"
        )
