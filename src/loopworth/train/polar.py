"""The orthogonal factor of a stack of matrices, by a fixed polynomial instead of an SVD.

Shapes: K matrices of R rows and C columns; X has its singular values in (0, 1] and each step maps
every one of them by s -> a s + b s^3 + c s^5, towards 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Triple = tuple[float, float, float]

# Source: Polar Express, arXiv 2505.16932: the five steps that are best in turn (safety 2e-2,
# cushion 2), as the code of arXiv 2604.21106 uses them.
POLAR_EXPRESS: tuple[Triple, ...] = (
    (8.156555, -22.48329, 15.87877),
    (4.042930, -2.808917, 0.5000178),
    (3.891668, -2.772484, 0.5060648),
    (3.285754, -2.368129, 0.4644902),
    (2.346541, -1.709783, 0.4232355),
)
SAFETY, EPSILON = 1.02, 1e-6
# From here on it is cheaper to iterate on the R x R gram matrix; see `polar_flops`.
_WIDE = 2.0


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype the products are computed in: bfloat16 on a GPU, float32 on a CPU.

    A CPU has no fast bfloat16 products in general, and its float32 makes runs comparable.

    >>> compute_dtype(torch.device("cpu"))
    torch.float32
    """
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@torch.no_grad()
def orthogonalise(
    g_KRC: Tensor,
    *,
    coefficients: Sequence[Triple] = POLAR_EXPRESS,
    safety: float = SAFETY,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return U V^T of each g = U S V^T, with singular values in 0.85-1.14 where s is not tiny.

    g_KRC (..., R, C), any floating dtype. The result has its shape and `dtype`, by default what
    suits the device (`compute_dtype`); float64 stays float64. Singular values below about 1e-3 of
    the Frobenius norm come out smaller; a matrix of zeros gives zeros. Raises ValueError for a
    tensor without two dimensions.

    >>> u = orthogonalise(torch.diag(torch.tensor([3.0, -0.5]))[None])
    >>> bool(((u.diagonal(dim1=-2, dim2=-1).abs() - 1).abs() < 0.15).all())
    True
    """
    if g_KRC.ndim < 2:
        raise ValueError(
            f"a tensor of shape {tuple(g_KRC.shape)} is no matrix; give two dimensions"
        )
    if dtype is None:
        dtype = g_KRC.dtype if g_KRC.dtype == torch.float64 else compute_dtype(g_KRC.device)
    shape = g_KRC.shape
    g = g_KRC.reshape(-1, *shape[-2:])
    tall = shape[-2] > shape[-1]
    if tall:
        g = g.mT
    x = (g / (safety * torch.linalg.matrix_norm(g, keepdim=True) + EPSILON)).to(dtype)
    # The gram matrix squares the singular values: bfloat16 would lose the small ones.
    wide = dtype.itemsize >= 4 and x.shape[-1] >= _WIDE * x.shape[-2]
    x = _by_gram(x, coefficients) if wide else _direct(x.contiguous(), coefficients)
    return (x.mT if tall else x).reshape(shape)


def _direct(x: Tensor, coefficients: Sequence[Triple]) -> Tensor:
    """Iterate on X: three products a step, in buffers that are made once."""
    size = (*x.shape[:-1], x.shape[-2])
    gram, poly = x.new_empty(size), x.new_empty(size)
    other = torch.empty_like(x)
    for a, b, c in coefficients:
        torch.bmm(x, x.mT, out=gram)
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=poly)
        torch.baddbmm(x, poly, x, beta=a, out=other)
        x, other = other, x
    return x


def _by_gram(x: Tensor, coefficients: Sequence[Triple]) -> Tensor:
    """Iterate on A = X X^T, whose polynomials commute, and multiply X by their product once."""
    gram = x @ x.mT
    product: Tensor | None = None
    for step, (a, b, c) in enumerate(coefficients, start=1):
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        poly.diagonal(dim1=-2, dim2=-1).add_(a)
        product = poly if product is None else product @ poly
        if step < len(coefficients):
            gram = gram @ poly @ poly
    return x if product is None else product @ x


def polar_flops(rows: int, columns: int, *, steps: int = 5, gram: bool = True) -> float:
    """Return the FLOPs of one matrix, with m the smaller side and n the larger.

    Direct: steps (4 m^2 n + 2 m^3). By the gram matrix, from n = 2 m on: 4 m^2 n + (8 steps - 6)
    m^3; `gram=False` counts it direct, as for bfloat16.

    >>> polar_flops(1, 1), polar_flops(1, 4), polar_flops(4, 1, gram=False)
    (30.0, 50.0, 90.0)
    """
    m, n = float(min(rows, columns)), float(max(rows, columns))
    if gram and n >= _WIDE * m:
        return 4 * m * m * n + (8 * steps - 6) * m**3
    return steps * (4 * m * m * n + 2 * m**3)
