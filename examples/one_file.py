"""FedSDG from data to number, in one file and without the package.

Twenty clients hold handwritten digits, each some classes more often than others. Together they
adapt a frozen vision transformer: its layers get a low-rank adapter that all clients share, and one
that stays with its client behind a learned gate. The server averages the shared adapters and weighs
a client by how well its update agrees with the mean. Equations are numbered as in the paper.

It needs PyTorch and NumPy, scikit-learn for the digits, and safetensors for the backbone, which was
trained on letters. It takes two minutes. The package computes the same: see tests/examples.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

ROUNDS, EVALUATE_EVERY = 60, 5
CLIENTS, CLIENTS_PER_ROUND, CLASSES = 20, 10, 10
DIRICHLET = 0.1  # the smaller, the fewer classes a client has
EPOCHS, BATCH_SIZE, CLIP_NORM = 2, 16, 1.0
ETA_G, ETA_P, ETA_M = 0.00135, 0.01955, 0.1045  # rates: shared and private parameters, gates
LAMBDA1, LAMBDA2 = 0.03127, 0.0001  # weights of the penalties on gates and private adapters
BACKBONE = load_file(Path(__file__).parents[1] / "results/reference/backbones/letters.safetensors")
MEAN, STD = 0.296689, 0.370872  # of the pixels that the backbone was trained on
BLOCKS, DIM, HIDDEN, HEADS, PATCH = 6, 64, 256, 4, 4
RANK, SCALE = 8, 2.0  # r and s of the adapters
ADAPTED = {"attn.proj": DIM, "mlp.fc2": HIDDEN}  # adapted layers of a block, with their inputs
LAYERS = {f"blocks.{b}.{layer}": size for b in range(BLOCKS) for layer, size in ADAPTED.items()}
Tensors = dict[str, Tensor]
Samples = dict[str, np.ndarray]
Batches = list[np.ndarray]
STREAMS = {"partition": 0, "cohort": 1, "init": 2, "batches": 3, "test-split": 20}


def stream(purpose: str, seed: int, *keys: int) -> np.random.Generator:
    """Return the random numbers of one purpose; no other purpose shifts them."""
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS[purpose], *keys))
    return np.random.default_rng(sequence)


# --- Data -----------------------------------------------------------------------------------------
DIGITS = load_digits()  # 1,797 images of 8 x 8 pixels, whose values are 0 to 16
PIXELS = np.rint(DIGITS.images * (255 / 16)).astype(np.float32) / 255
IMAGES = torch.from_numpy((PIXELS[:, None] - MEAN) / STD)  # [n, 1, 8, 8], as the backbone's were
LABELS = DIGITS.target
TARGETS = torch.from_numpy(LABELS)


def test_set() -> np.ndarray:
    """Draw a fifth of the samples, each class in proportion, the same for all seeds."""
    total = -(-len(LABELS) // 5)  # rounded up
    quota, remainder = np.divmod(total * np.bincount(LABELS), len(LABELS))
    quota[np.argsort(-remainder, kind="stable")[: total - quota.sum()]] += 1
    generator = stream("test-split", 0)
    classes = [generator.permutation(np.flatnonzero(c == LABELS)) for c in range(CLASSES)]
    return np.sort(np.concatenate([classes[c][: quota[c]] for c in range(CLASSES)]))


TEST = test_set()


def dirichlet(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the client [n] of each sample: each class is cut by shares p ~ Dir(alpha)."""
    client = np.empty(len(labels), dtype=int)
    for c in range(CLASSES):
        members = generator.permutation(np.flatnonzero(labels == c))
        shares = generator.dirichlet(np.full(CLIENTS, DIRICHLET))
        ends = np.rint(np.cumsum(shares)[:-1] * len(members))
        part = np.searchsorted(ends, np.arange(len(members)), side="right")
        client[members] = generator.permutation(CLIENTS)[part]
    return client


def partition(seed: int) -> list[Samples]:
    """Return each client's samples: `all`, half of them to `train` on, a fifth to validate."""
    generator = stream("partition", seed)
    rest = np.setdiff1d(np.arange(len(LABELS)), TEST)
    client = dirichlet(LABELS[rest], generator)
    while np.bincount(client, minlength=CLIENTS).min() < 12:  # all need some
        client = dirichlet(LABELS[rest], generator)
    clients = []
    for k in range(CLIENTS):
        samples = rest[client == k]
        ends = np.cumsum([round(0.3 * len(samples)), round(0.2 * len(samples))])
        _, val, train = np.split(generator.permutation(samples), ends)
        clients.append({"all": samples, "val": val, "train": np.sort(train)})
    return clients


# --- Model ----------------------------------------------------------------------------------------
def first_values(seed: int) -> tuple[Tensors, Tensors]:
    """Draw the shared theta_g and what a client keeps: theta_p, and the logits a of its gates."""
    generator = stream("init", seed)
    shared, private = {}, {}
    for layer, size in LAYERS.items():
        bound = size**-0.5
        shared[f"{layer}.lora_A"] = generator.uniform(-bound, bound, (RANK, size))
        shared[f"{layer}.lora_B"] = np.zeros((DIM, RANK))  # the first model is the backbone
    shared["head.weight"] = generator.normal(0, 0.02, (CLASSES, DIM))
    shared["head.bias"] = np.zeros(CLASSES)
    for layer, size in LAYERS.items():
        private[f"{layer}.lora_A_private"] = generator.normal(0, 1e-4, (RANK, size))  # penalised
        private[f"{layer}.lora_B_private"] = np.zeros((DIM, RANK))
    for block in range(BLOCKS):
        private[f"blocks.{block}.lambda_k_logit"] = np.zeros(())  # m = 1/2
    return leaves(shared), leaves(private)


def leaves(values: dict[str, Tensor | np.ndarray]) -> Tensors:
    """Return copies that can be trained."""
    return {
        name: torch.as_tensor(value).detach().float().clone().requires_grad_()
        for name, value in values.items()
    }


def frozen(x: Tensor, layer: str) -> Tensor:
    """Return W x + b of the backbone."""
    return F.linear(x, BACKBONE[f"{layer}.weight"], BACKBONE[f"{layer}.bias"])


def norm(x: Tensor, layer: str) -> Tensor:
    """Return a layer norm of the backbone."""
    return F.layer_norm(x, [DIM], BACKBONE[f"{layer}.weight"], BACKBONE[f"{layer}.bias"], 1e-6)


def adapted(x: Tensor, block: str, name: str, shared: Tensors, private: Tensors) -> Tensor:
    """Return (W + s B_g A_g + m s B_p A_p) x + b with the gate m = sigmoid(a) (Eq. 3, 4)."""
    layer = f"{block}.{name}"
    gate = torch.sigmoid(private[f"{block}.lambda_k_logit"])
    common = x @ shared[f"{layer}.lora_A"].T @ shared[f"{layer}.lora_B"].T
    personal = x @ private[f"{layer}.lora_A_private"].T @ private[f"{layer}.lora_B_private"].T
    return frozen(x, layer) + SCALE * (common + gate * personal)


def scores(images: Tensor, shared: Tensors, private: Tensors) -> Tensor:
    """Return the scores [n, classes] of images [n, 1, 8, 8] by a client's model."""
    kernel, bias = BACKBONE["patch_embed.proj.weight"], BACKBONE["patch_embed.proj.bias"]
    patches = F.conv2d(images, kernel, bias, stride=PATCH).flatten(2).transpose(1, 2)
    class_token = BACKBONE["cls_token"].expand(len(images), -1, -1)
    x = torch.cat([class_token, patches], dim=1) + BACKBONE["pos_embed"]
    for block in (f"blocks.{number}" for number in range(BLOCKS)):
        packed = frozen(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        q, k, v = packed.unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + adapted(mixed, block, "attn.proj", shared, private)
        hidden = F.gelu(frozen(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + adapted(hidden, block, "mlp.fc2", shared, private)
    return F.linear(norm(x, "norm")[:, 0], shared["head.weight"], shared["head.bias"])


# --- A client -------------------------------------------------------------------------------------
def penalty(private: Tensors) -> Tensor:
    """Return lambda_1 sum_l |m_l| + lambda_2 ||theta_p||^2 (Eq. 5)."""
    gates = sum(torch.sigmoid(value) for name, value in private.items() if "logit" in name)
    squares = sum(value.square().sum() for name, value in private.items() if "lora" in name)
    return LAMBDA1 * gates + LAMBDA2 * squares


def train(shared: Tensors, private: Tensors, batches: Batches) -> tuple[Tensors, Tensors]:
    """Return theta_g and a client's private parameters after its local steps (Eq. 6 to 8)."""
    shared, private = leaves(shared), leaves(private)
    adapters = [value for name, value in private.items() if "lora" in name]
    logits = [value for name, value in private.items() if "logit" in name]
    groups = [([*shared.values()], ETA_G), (adapters, ETA_P), (logits, ETA_M)]
    adam = torch.optim.Adam([{"params": group, "lr": rate} for group, rate in groups])
    for batch in batches:
        adam.zero_grad()
        loss = F.cross_entropy(scores(IMAGES[batch], shared, private), TARGETS[batch])
        (loss + penalty(private)).backward()
        clip_grad_norm_([*shared.values(), *private.values()], CLIP_NORM)
        adam.step()
    return shared, private


def draw_batches(samples: np.ndarray, generator: np.random.Generator) -> Batches:
    """Return the mini-batches of all local epochs, each in an order of its own."""
    orders = [generator.permutation(samples) for _ in range(EPOCHS)]
    begins = range(0, len(samples), BATCH_SIZE)
    return [order[begin : begin + BATCH_SIZE] for order in orders for begin in begins]


# --- The server -----------------------------------------------------------------------------------
@torch.no_grad()
def aggregate(shared: Tensors, trained: list[Tensors]) -> Tensors:
    """Return theta_g + sum_k w_k Delta_k with Delta_k = theta_k - theta_g (Eq. 9, 11)."""
    theta = parameters_to_vector(shared.values())
    updates = torch.stack([parameters_to_vector(theta_k.values()) - theta for theta_k in trained])
    theta = theta + alignment_weights(updates) @ updates
    pieces = theta.split([value.numel() for value in shared.values()])
    return {name: piece.view_as(shared[name]) for name, piece in zip(shared, pieces, strict=True)}


def alignment_weights(updates: Tensor) -> Tensor:
    """Return weights [M] of updates [M, d]: max(0, cosine to their mean), of sum 1 (Eq. 10)."""
    mean = updates.mean(0)
    cosine = updates @ mean / (updates.norm(dim=1) * mean.norm() + 1e-8)
    alignment = cosine.clamp(min=0)
    if alignment.sum() < 1e-6:  # no update agrees with the mean
        alignment = torch.ones_like(alignment)
    return alignment / alignment.sum()


# --- Accuracy and rounds --------------------------------------------------------------------------
@torch.no_grad()
def accuracies(shared: Tensors, private: Tensors, samples: Samples) -> tuple[float, float]:
    """Return the accuracy of a client's model on its validation samples and on the test set."""
    right = scores(IMAGES, shared, private).argmax(1).numpy() == LABELS
    # A test image counts as much as the client has of its class.
    shares = np.bincount(LABELS[samples["all"]], minlength=CLASSES) / len(samples["all"])
    weights = (shares / np.bincount(LABELS[TEST]))[LABELS[TEST]]
    return right[samples["val"]].mean(), weights @ right[TEST]


def one_round(
    t: int, seed: int, clients: list[Samples], shared: Tensors, private: list[Tensors]
) -> Tensors:
    """Return theta_g after round t; what clients keep changes in place."""
    cohort = stream("cohort", seed, t).choice(CLIENTS, CLIENTS_PER_ROUND, replace=False)
    sent = []
    for k in np.sort(cohort):
        batches = draw_batches(clients[k]["train"], stream("batches", seed, t, k))
        theta, private[k] = train(shared, private[k], batches)
        sent.append(theta)
    return aggregate(shared, sent)


def run(rounds: int, seed: int) -> float:
    """Train; return the clients' mean accuracy in the round with the best validation accuracy."""
    clients = partition(seed)
    shared, start = first_values(seed)
    private = [start] * CLIENTS
    course = []
    for t in range(1, rounds + 1):
        shared = one_round(t, seed, clients, shared, private)
        if t % EVALUATE_EVERY == 0 or t == rounds:
            by_client = [accuracies(shared, private[k], clients[k]) for k in range(CLIENTS)]
            course.append(np.mean(by_client, axis=0))
            print(f"round {t}: validation {course[-1][0]:.3f}, test {course[-1][1]:.3f}")
    return max(course, key=lambda means: means[0])[1]


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are too small for more
    print(f"accuracy: {run(ROUNDS, seed=0):.4f}")
