"""Federated learning round by round.

A round is two functions, `begin` and `finish` in `rounds`, over frozen values. Clients are an
axis: what many clients hold is one tensor or list whose first axis is the client.
"""
