"""Frozen backbones: how they are pretrained."""
