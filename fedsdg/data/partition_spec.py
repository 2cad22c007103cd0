"""How samples are dealt to clients and split. Never imports torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from fedsdg.data.stratified import TEST_SHARE
from fedsdg.parts import Absent, Range, part


@part
class PartitionSettings:
    """How samples are divided among clients."""

    scheme: Literal["per-class", "per-client"] = "per-class"
    "Dirichlet shares drawn `per-class` over clients, or `per-client` over classes"
    min_samples: Annotated[int, Range(3)] = 12
    "smallest number of samples of a client"
    min_test: Annotated[int, Range(1)] = 3
    "smallest number of test samples of a client"
    retries: Annotated[int, Range(0)] = 200
    "draws before the partition is given up with an error"
    test: Annotated[Literal["fixed", "by-seed"], Absent("by-seed")] = "fixed"
    """the global test set of a data set that has none of its own: `fixed`, a stratified fifth that
    depends on the data set alone; `by-seed`, one for each seed, as in records without this key.
    `federation.global_images` and `conditions.benchmark_images` follow it"""

    def __post_init__(self) -> None:
        if self.min_samples < self.min_test + 2:
            raise ValueError(
                f"min_samples = {self.min_samples} is too small: min_test = {self.min_test} test "
                f"samples, 1 for validation and 1 for training need {self.min_test + 2}"
            )


@part
class PartitionSpec(PartitionSettings):
    """All that a partition is made by; what it adds is the same in every experiment.

    Raises ValueError for values that cannot be met.
    """

    fractions: Annotated[tuple[float, ...], Range(0, 1)] = (0.5, 0.2, 0.3)
    "train, validation and test parts of a client's samples"
    global_test: Annotated[float, Range(0, 1)] = TEST_SHARE
    "part taken first as the global test set where the data has no test set"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            len(self.fractions) != 3
            or not all(0 < f < 1 for f in self.fractions)
            or not math.isclose(sum(self.fractions), 1.0, abs_tol=1e-9)
        ):
            raise ValueError(
                f"fractions must be three positive parts that sum to 1, got {self.fractions}"
            )
        if not 0 < self.global_test < 1:
            raise ValueError(f"global_test must lie between 0 and 1, got {self.global_test}")
