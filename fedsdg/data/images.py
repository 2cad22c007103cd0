"""From stored pixels to the input of a backbone: size, channels, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# ITU-R BT.601, the weights of Pillow's conversion to grey. They sum to 1, so grey stays grey.
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Stored images, and how a model takes them."""

    stored: np.ndarray
    "uint8 [n, H, H] grey or [n, H, H, 3] colour"
    size: int
    "height and width of the model's input in pixels"
    channels: int
    "channels of the model's input, 1 or 3"
    mean: Sequence[float]
    "mean per channel of the input"
    std: Sequence[float]
    "standard deviation per channel of the input"

    def prepared(self, images: np.ndarray, chunk: int = 256) -> np.ndarray:
        """Scale to [0, 1], resize, convert grey and colour, and normalise as (x − mean) / std.

        Grey becomes equal channels, colour becomes luma. Resizing is bilinear with antialiasing.

        Args:
            images: The stored images, or others of their kind.
            chunk: Number of images that are converted at a time.

        Returns:
            float32 [n, channels, size, size], the only large array that is made.
        """
        import torch
        from torch.nn.functional import interpolate

        mean, std = torch.tensor([self.mean, self.std]).view(2, 1, -1, 1, 1)
        luma = torch.tensor(_LUMA).view(1, 3, 1, 1)
        shape = (len(images), self.channels, self.size, self.size)
        prepared = np.empty(shape, dtype=np.float32)
        for start in range(0, len(images), chunk):
            part = torch.from_numpy(images[start : start + chunk].astype(np.float32) / 255.0)
            part = part.unsqueeze(1) if images.ndim == 3 else part.permute(0, 3, 1, 2)
            if part.shape[1] > self.channels:
                part = (part * luma).sum(dim=1, keepdim=True)
            if part.shape[2] != self.size:
                part = interpolate(part, size=shape[2:], mode="bilinear", antialias=True)
            # A grey part broadcasts against three means.
            prepared[start : start + chunk] = ((part - mean) / std).numpy()
        return prepared
