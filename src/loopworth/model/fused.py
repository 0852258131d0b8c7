"""Elementwise arithmetic of a layer, written to touch memory as seldom as it can."""

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which matrices multiply x: autocast's, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x / rms(x) * weight over the last axis, in the wider dtype of the two."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, EPS)


def rotated_unit(x_BTHC: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Rotate the halves of the last axis by position, then divide by the RMS; dtype of x."""
    half = x_BTHC.shape[-1] // 2
    cosine, sine = cosine_TC[:, None, :], sine_TC[:, None, :]
    one, two = x_BTHC[..., :half], x_BTHC[..., half:]
    out = torch.cat((one * cosine + two * sine, two * cosine - one * sine), dim=-1)
    return F.rms_norm(out, out.shape[-1:], eps=EPS).to(x_BTHC.dtype)


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2."""
    return F.relu(x).square()
