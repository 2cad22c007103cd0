"""Losses: what a client's training makes small, sample by sample; one a file.

A loss is called as ``loss(logits [B, C], labels [B], reduction="none")`` and returns [B]. A batch's
loss is the mean over its samples, or Σ of the losses / Σ of the weights where a loss weighs them.
"""
