"""Backbones, their adapters with a client axis, and the exchange with peft."""
