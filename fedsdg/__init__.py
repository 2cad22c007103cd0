"""FedSDG Bench: a benchmark and reproducibility suite for federated fine-tuning."""

__version__ = "0.2.0"
