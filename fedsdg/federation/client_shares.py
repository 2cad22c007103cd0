"""Shares of the clients as whole clients. Imports no library, since configs are checked by it."""

import math


def clients_in(share: float, num_clients: int) -> int:
    """How many of K clients a share is: share · K, halves rounded up."""
    return math.floor(share * num_clients + 0.5)
