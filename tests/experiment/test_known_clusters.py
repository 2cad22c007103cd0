"""Clusters that are known before training: the domain, or the labels that clients hold."""

from pathlib import Path

import numpy as np
import torch
import yaml

from fedsdg.data.partition import TRAIN
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

ROOT = Path(__file__).parents[2]


def federation(dataset, skew, clusters, clients=8, **parameters):
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    raw["federation"] |= {"clients": clients, "clients_per_round": 4, "rounds": 2}
    raw["training"] |= {"epochs": 1}
    raw |= {"datasets": [dataset], "skews": [skew], "methods": ["fedavg"]}
    config = parse_config(raw)
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    partition = make_partition(dataset, skew, 0, clients, config.partition)
    entry = {"type": "clustered", "clusters": clusters, "assignment": "known", **parameters}
    run = config.run(dataset, skew, method_entry(entry), 0)
    return build(run, prepare_material(dataset, backbone, "cpu"), partition), partition


def test_clients_of_like_labels_share_a_cluster():
    made, partition = federation("digits", "classes~2", 3)
    clusters = made.state["assignment"].numpy()
    assert set(clusters.tolist()) == {0, 1, 2}
    made.run()
    told = {row["client"]: row["cluster"] for row in made.records.clients if row["participated"]}
    assert all(clusters[client] == cluster for client, cluster in told.items())
    # Clusters of clients that were drawn have moved apart, by two rounds of separate training.
    drawn = set(told.values())
    assert len({made.models[c].numpy().tobytes() for c in drawn}) == len(drawn) > 1
    labels = made.samples.labels.numpy()
    shares = [np.bincount(labels[own], minlength=10) / len(own) for own in partition.shards(TRAIN)]
    shares = np.array(shares)
    centres = np.array([shares[clusters == c].mean(0) for c in range(3)])
    distances = ((shares[:, None] - centres[None]) ** 2).sum(2)
    sizes = np.bincount(clusters)
    mine = distances[np.arange(8), clusters]
    assert (mine <= distances.min(1) + 1e-12)[sizes[clusters] > 1].all()
