"""Optimisers over rows: every client has its own state and its own step count.

PyTorch's optimisers keep one step count for a whole tensor, and Adam moves rows whose gradient is
zero; a cohort of clients of different sizes needs neither. Client by client each equals that of
``torch.optim``. An optimiser is a description without a state (``optimiser.py``), one a file;
``Mover`` keeps what it remembers.
"""
