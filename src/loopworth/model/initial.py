"""Random initial values that are the same on every device: drawn on the CPU in fp32."""

import torch
from torch import Tensor


def uniform_(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with uniform numbers of mean zero and standard deviation `std`."""
    bound = 3**0.5 * std
    values = torch.empty(parameter.shape, dtype=torch.float32)
    parameter.copy_(values.uniform_(-bound, bound, generator=generator))


def normal_(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with normal numbers of mean zero and standard deviation `std`."""
    values = torch.empty(parameter.shape, dtype=torch.float32)
    parameter.copy_(values.normal_(0.0, std, generator=generator))
