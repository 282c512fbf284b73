"""A group's head in closed form: class-balanced ridge regression from the members' sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from carvyfl.learning.one_shot.sums import NEVER, Sums

if TYPE_CHECKING:  # a head itself needs no torch, which takes seconds
    from torch import Tensor

Floats = npt.NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")
def head(sums: Sums, ridge: float) -> tuple[Floats, Floats]:
    """Return the weights, shape (C, d), and biases, shape (C,), of the head that the sums give.

    With n samples of the classes C_g, μ_c = M_c / n_c and μ the mean of the μ_c (each class
    counts once, however many samples it has)::

        S_w = (S − Σ n_c μ_c μ_cᵀ) / n        the spread within classes
        B   = Σ (μ_c − μ)(μ_c − μ)ᵀ / |C_g|   the spread between them
        A   = S_w + B,   τ = tr A             the mean squared distance of a feature vector from μ
        W_c = (A + λ τ/n · I)⁻¹ (μ_c − μ) / |C_g|
        score of class c = W_cᵀ (x − μ)

    The shrinkage is relative to τ, so that the scale of the features does not matter. Everything
    is a function of the members' sums, of one sample at least, and of λ = ``ridge``: no constant
    comes from other groups. Sums so large that this overflows give NaN.
    """
    held = np.flatnonzero(sums.counts)
    counts = sums.counts[held].astype(np.float64)
    total = counts.sum()
    means = np.asarray(sums.first, dtype=np.float64)[held] / counts[:, None]
    centre = means.mean(axis=0)
    spread = (means - centre) / np.sqrt(len(held))
    scaled = means * np.sqrt(counts)[:, None]
    matrix = np.array(sums.second, dtype=np.float64)  # then in place: it has d² numbers
    matrix -= scaled.T @ scaled
    matrix /= total
    matrix += spread.T @ spread
    scale = float(np.trace(matrix))
    weights, biases = np.zeros((len(sums.counts), sums.width)), np.full(len(sums.counts), NEVER)
    biases[held] = 0.0
    if not scale <= 0:  # else all samples are alike, and nothing tells the classes held apart
        sides = (spread / np.sqrt(len(held))).T
        weights[held] = _solve(matrix, ridge * scale / total, sides).T
        biases[held] = -weights[held] @ centre
    return weights, biases


def heads(second: Tensor, first: Tensor, counts: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return the heads of many groups, computed together where their sums lie: estimates.

    It is :func:`head` but for rounding: hundreds of heads one by one leave a GPU idle. Groups whose
    matrix is not positive, or overflows, go through :func:`head` itself. Sums are of shapes
    (G, d, d), (G, C, d) and (G, C), weights and biases of (G, C, d) and (G, C), all float64 but the
    counts.
    """
    import torch

    held, total = counts > 0, counts.sum(dim=1)[:, None, None]
    kinds = held.sum(dim=1)[:, None, None].double()
    present, each = held[..., None], counts[..., None].double()
    means = torch.where(present, first / each, 0.0)
    centre = means.sum(dim=1, keepdim=True) / kinds
    spread = torch.where(present, means - centre, 0.0) / kinds.sqrt()
    scaled = means * each.sqrt()
    matrix = torch.baddbmm(second, scaled.mT, scaled, alpha=-1)
    matrix = (matrix / total).baddbmm_(spread.mT, spread)
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    scale = diagonal.sum(dim=1)[:, None, None]
    diagonal += (ridge * scale / total)[:, 0]
    factor, failed = torch.linalg.cholesky_ex(matrix)
    weights = torch.cholesky_solve((spread / kinds.sqrt()).mT, factor).mT
    weights = torch.where(present & ~(scale <= 0), weights, 0.0)
    biases = torch.where(held, -(weights @ centre.mT)[..., 0], NEVER)
    hard = ((failed != 0) | ~weights.isfinite().all(dim=(1, 2))) & ~(scale <= 0)[:, 0, 0]
    for group in hard.nonzero()[:, 0].tolist():
        sums = Sums(*(part[group].cpu().numpy() for part in (second, first, counts)))
        weights[group], biases[group] = map(torch.from_numpy, head(sums, ridge))
    return weights, biases


def _solve(matrix: Floats, shrinkage: float, sides: Floats) -> Floats:
    """Solve (A + s I) w = b for every b; A is changed. Forged negative eigenvalues count as 0."""
    np.einsum("ii->i", matrix)[:] += shrinkage
    if not np.isfinite(matrix.sum()):
        return np.full_like(sides, np.nan)
    try:  # of a symmetric matrix the transpose is as good, and LAPACK need not copy it
        factor = cho_factor(matrix.T, lower=True, check_finite=False)
        solved: Floats = cho_solve(factor, sides, check_finite=False)
    except LinAlgError:
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        lifted = np.maximum(values, shrinkage)
        solved = vectors @ ((vectors.T @ sides) / lifted[:, None])
    return solved
