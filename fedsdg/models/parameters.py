"""The map between flat parameter matrices and named tensors with a leading client axis.

Clients are an axis: the communicated parameters of M clients are the rows of one matrix [M, d], and
every named tensor is a view of it, so an update is ready for the server without being copied.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from torch import Tensor

# torch would like gradients laid out densely; ours are columns of one matrix on purpose.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")

Group = Literal["shared", "private", "gate", "own", "frozen", "measured"]

#: Stands for the number of a block in the names of what all blocks have: `blocks.*.attn.proj`.
EVERY = "blocks.*"
_BLOCK = re.compile(r"^blocks\.\d+(?=\.)")


@dataclass(frozen=True)
class ParameterSpec:
    """One named parameter of one client.

    `group` says which learning rate moves it: "shared" η_g, "private" η_p, "gate" η_m, "own" η_g
    again, for a client's copy of a communicated one; "frozen" is the same for all clients and stays
    as it was drawn (the A of FFA-LoRA, the head of FedBABU); "measured" is worked out and not
    learned. `trainable` is False for these two, for a private A_p that stays at its start (the
    `b-only` penalty), and for what rests in a round (see `Layout.of_round`), which is not sent.
    """

    name: str
    shape: tuple[int, ...]
    group: Group
    trainable: bool = True

    @property
    def size(self) -> int:
        """Number of scalars; 1 for a scalar of shape ()."""
        return math.prod(self.shape)

    @property
    def of_head(self) -> bool:
        """Whether it belongs to a head."""
        return self.name.startswith("head.")

    def frozen(self) -> ParameterSpec:
        """The same parameter, frozen."""
        return replace(self, group="frozen", trainable=False)


@dataclass(frozen=True)
class Layout:
    """Order of the parameters in a communicated row [d] and in a private row [d_private].

    `turns`: name endings of communicated parameters that train in turns, a round each; all others
    train in every round.
    """

    communicated: tuple[ParameterSpec, ...]
    private: tuple[ParameterSpec, ...]
    turns: tuple[str, ...] = ()

    def of_round(self, *rounds: int) -> Layout:
        """The layout in a round, from 1 on; parameters that rest there are not trainable.

        Of several rounds, parameters that rest in all of them are not trainable.
        """
        if not self.turns:
            return self
        turns = {(round_ - 1) % len(self.turns) for round_ in rounds}
        resting = tuple(name for turn, name in enumerate(self.turns) if turn not in turns)
        return Layout(
            tuple(
                replace(spec, trainable=False) if spec.name.endswith(resting) else spec
                for spec in self.communicated
            ),
            self.private,
        )

    def of_copy(self, head_alone: bool) -> Layout:
        """The layout of the copies that clients tune before an evaluation.

        A frozen head is trained, at η_g: nothing of a copy is sent. ``head_alone``: no other
        parameter is trained.
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
        """Number of communicated scalars per client (0 for `local-only`)."""
        return sum(spec.size for spec in self.communicated)

    @property
    def before_head(self) -> int:
        """Number of communicated scalars before the head, the last of all."""
        return sum(spec.size for spec in self.communicated if not spec.of_head)

    @property
    def d_private(self) -> int:
        """Number of scalars a client keeps to itself."""
        return sum(spec.size for spec in self.private)

    @property
    def own_parameters(self) -> int:
        """Number of scalars in which clients may differ: the private ones that are not frozen."""
        return sum(spec.size for spec in self.private if spec.group != "frozen")

    @property
    def trains_private(self) -> bool:
        """Whether a client trains anything that it keeps to itself."""
        return any(spec.trainable for spec in self.private)

    @property
    def global_model(self) -> bool:
        """Whether the communicated parameters alone are a model that can be evaluated.

        They are not where clients keep what every model needs: the head, a factor of its adapters,
        or (`local-only`) all. What is frozen belongs to every model.
        """
        return all(spec.group != "shared" for spec in self.private)


def offsets(specs: Sequence[ParameterSpec]) -> dict[str, slice]:
    """Columns of every parameter in the flat row, by name."""
    columns, start = {}, 0
    for spec in specs:
        columns[spec.name] = slice(start, start + spec.size)
        start += spec.size
    return columns


def views(matrix: Tensor, specs: Sequence[ParameterSpec]) -> dict[str, Tensor]:
    """Named views [M, *shape] of `matrix` [M, d]; they share its storage.

    Raises:
        ValueError: `matrix` is not a matrix with as many columns as the parameters have scalars.
    """
    _require_width(matrix, specs)
    columns = offsets(specs)
    return {s.name: matrix[:, columns[s.name]].view(matrix.shape[0], *s.shape) for s in specs}


def _require_width(matrix: Tensor, specs: Sequence[ParameterSpec]) -> None:
    width = sum(spec.size for spec in specs)
    if matrix.dim() != 2 or matrix.shape[1] != width:
        raise ValueError(
            f"the parameters need a matrix [clients, {width}], got shape {tuple(matrix.shape)}: "
            "make it from the same layout"
        )


def of_every_block(
    matrix: Tensor, specs: Sequence[ParameterSpec]
) -> tuple[dict[str, Tensor], tuple[ParameterSpec, ...]]:
    """As `views`, but what all blocks have is one view: `blocks.*.{name}` [M, blocks, *shape].

    Blocks are alike, so one parameter of each stands equally far from the next, and the view
    copies nothing.

    Returns:
        The views by name, and the parameters that have those names, with the shape of one block.

    Raises:
        ValueError: as `views`, or parameters of one name differ or are not equally far apart.
    """
    _require_width(matrix, specs)
    kinds = _kinds(tuple(specs))
    named = {}
    for kind, first, blocks, step in kinds:
        own = matrix[:, first : first + (blocks - 1) * step + kind.size]
        shape = (blocks, *kind.shape) if kind.name.startswith(EVERY) else kind.shape
        named[kind.name] = own.unfold(1, kind.size, step).view(matrix.shape[0], *shape)
    return named, tuple(kind for kind, *_ in kinds)


@lru_cache(maxsize=64)
def _kinds(specs: tuple[ParameterSpec, ...]) -> tuple[tuple[ParameterSpec, int, int, int], ...]:
    """What all blocks have: of each its first column, how many blocks, and how far apart."""
    columns = offsets(specs)
    kinds: dict[ParameterSpec, list[int]] = {}
    for spec in specs:
        kind = replace(spec, name=_BLOCK.sub(EVERY, spec.name))
        kinds.setdefault(kind, []).append(columns[spec.name].start)
    found: list[tuple[ParameterSpec, int, int, int]] = []
    for kind, starts in kinds.items():
        first, blocks = starts[0], len(starts) if kind.name.startswith(EVERY) else 1
        step = (starts[-1] - first) // max(1, blocks - 1) or kind.size
        even = starts[:blocks] == [first + step * number for number in range(blocks)]
        if not even or any(kind.name == other.name for other, *_ in found):
            raise ValueError(
                f"the parameters {kind.name} of the blocks differ or are not equally far apart: "
                "make the layout with make_layout"
            )
        found.append((kind, first, blocks, step))
    return tuple(found)


def leaves(
    matrix: Tensor,
    gradients: Tensor | None,
    specs: Sequence[ParameterSpec],
    *,
    by_kind: bool = False,
) -> dict[str, Tensor]:
    """Named leaf tensors that share the storage of `matrix`, their `.grad` that of `gradients`.

    `backward()` then accumulates straight into `gradients` [M, d]; with None nothing gets one. Zero
    it with `gradients.zero_()`: an optimiser's `zero_grad()` would sever the views. Slicing one
    leaf matrix inside autograd would allocate a zero matrix for every slice instead.

    The names are those of `views`. With ``by_kind``, and on a GPU, where whatever is done to a
    tensor is a launch however small it is, they are those of `of_every_block`.

    Raises:
        ValueError: the two matrices differ in shape, type or device, or do not fit `specs`.
    """
    if gradients is not None:
        same = matrix.shape == gradients.shape and matrix.dtype == gradients.dtype
        if not same or matrix.device != gradients.device:
            raise ValueError(
                f"parameters {tuple(matrix.shape)} {matrix.dtype} and gradients "
                f"{tuple(gradients.shape)} {gradients.dtype} must agree in shape, type and device: "
                "make one with torch.zeros_like of the other"
            )
    values, named = _arranged(matrix, specs, by_kind)
    if gradients is not None:
        slopes, _ = _arranged(gradients, specs, by_kind)
        for spec in named:
            if spec.trainable:
                values[spec.name].requires_grad_()
                values[spec.name].grad = slopes[spec.name]
    return values


def _arranged(
    matrix: Tensor, specs: Sequence[ParameterSpec], by_kind: bool
) -> tuple[dict[str, Tensor], Sequence[ParameterSpec]]:
    """The views that training works on, and the parameters that have their names."""
    if matrix.device.type == "cpu" and not by_kind:
        return views(matrix.detach(), specs), specs
    return of_every_block(matrix.detach(), specs)


def only_trained(matrix: Tensor, layout: Layout) -> Tensor:
    """A copy of rows [M, d] with 0 for communicated parameters that are not trained."""
    copied = matrix.clone()
    columns = offsets(layout.communicated)
    for spec in layout.communicated:
        if not spec.trainable:
            copied[:, columns[spec.name]] = 0
    return copied
