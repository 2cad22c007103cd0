"""A cohort trained from its parameters, which tests name one by one."""

from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients


def train_cohort(
    model, layout, samples, batches, start, private, work, *, state=None, received=None, **named
):
    """As ``train_clients``; ``received`` holds vectors [d] for all clients, or a row each."""
    sent = {name: value.expand(len(batches), -1) for name, value in (received or {}).items()}
    clients = Clients(batches, start, private, dict(state or {}), sent, **named)
    return train_clients(model, layout, samples, clients, work)
