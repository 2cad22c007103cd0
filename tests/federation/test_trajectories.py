"""Models of a run become rows: every point at its place, distances as they were in space."""

import numpy as np
import pytest
import torch

from fedsdg.federation.trajectories import Trajectory


def test_rows_hold_every_point_of_its_round_and_client():
    """Models in a plane of a space of 40 dimensions: nothing is lost by drawing them."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 2, generator=generator, dtype=torch.float64)).Q
    flat = torch.randn(2, 4, 2, 2, generator=generator, dtype=torch.float64)  # round, step, client
    means = flat[:, -1].mean(dim=1)
    trajectory = Trajectory()
    for round_ in (1, 2):
        for step in range(4):
            trajectory.clients(round_, [5, 3], flat[round_ - 1, step] @ basis.T)
        trajectory.aggregate(round_, means[round_ - 1] @ basis.T)
    rounds = [{"round": r} for r in (1, 2)]
    clients = [{"round": r, "client": c} for r in (1, 2) for c in (3, 4, 5)]
    trajectory.write(rounds, clients)

    placed, drawn = [], []
    for row in clients:
        if row["client"] == 4:
            assert "path_x" not in row, "it took no part"
            continue
        k = [5, 3].index(row["client"])
        placed += flat[row["round"] - 1, :, k].tolist()
        drawn += list(zip(row["path_x"], row["path_y"], strict=True))
    for row in rounds:
        placed.append(means[row["round"] - 1].tolist())
        drawn.append((row["model_x"], row["model_y"]))
        assert row["plane_share"] == pytest.approx(1.0)
    there, here = (
        np.linalg.norm(np.array(p)[:, None] - np.array(p)[None], axis=2) for p in (placed, drawn)
    )
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_points_are_copies():
    model = torch.zeros(2, 3)
    trajectory = Trajectory()
    trajectory.clients(1, [0, 1], model)
    model += torch.tensor([[3.0, 4, 0], [3, 4, 0]])
    trajectory.clients(1, [0, 1], model)
    rows = [{"round": 1, "client": 0}]
    trajectory.write([], rows)
    x, y = np.array(rows[0]["path_x"]), np.array(rows[0]["path_y"])
    assert np.hypot(x[1] - x[0], y[1] - y[0]) == pytest.approx(5.0)


def test_a_checkpoint_holds_all_of_it():
    def rows():
        return [{"round": 1}, {"round": 2}], [{"round": r, "client": 7} for r in (1, 2)]

    models = torch.randn(2, 3, 1, 20, generator=torch.Generator().manual_seed(2))
    whole, broken_off = Trajectory(), Trajectory.of_tensors(Trajectory().tensors())
    for round_ in (1, 2):
        for trajectory in (whole, broken_off):
            for step in range(3):
                trajectory.clients(round_, [7], models[round_ - 1, step])
            trajectory.aggregate(round_, models[round_ - 1, 2, 0])
        broken_off = Trajectory.of_tensors(broken_off.tensors())
    written = []
    for trajectory in (whole, broken_off):
        trajectory.write(*(found := rows()))
        written.append(found)
    assert written[0] == written[1]
    assert len(written[0][1][1]["path_x"]) == 3
