"""Confidence radii, as pure functions of numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mtbo_torch.checks import require_positive, require_probability

Number = float | Tensor


def exact_radius(info_gain: Number, norm_bound: Number, noise_scale: Number, eta: Number, delta: float) -> Tensor:
    r"""The radius of MT-KB (Theorem 2).

    .. math:: \beta_t = b + \frac{\sigma}{\sqrt\eta} \sqrt{2 \log(1/\delta) + \log\det(I + \eta^{-1} G_t)}

    With it, :math:`\|f(x) - \mu_t(x)\| \le \beta_t \|\Gamma_t(x, x)\|^{1/2}` for all x and t with probability at least
    :math:`1 - \delta`. (Theorem 1 prints :math:`\sigma / \sqrt n`; its proof and Theorem 2 have
    :math:`\sigma / \sqrt\eta`.)

    Args:
        info_gain: :math:`\frac12 \log\det(I + \eta^{-1} G_t)`, as ``model.info_gain``; any shape.
        norm_bound: A bound b of the RKHS norm of f.
        noise_scale: The noise's sub-Gaussian constant :math:`\sigma`.
        eta: The regulariser.
        delta: The probability of failure, in ``(0, 1]``.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch import exact_radius
        >>> exact_radius(info_gain=8.0, norm_bound=2.0, noise_scale=0.5, eta=0.25, delta=1.0)
        tensor(6.)
    """
    require_positive("info_gain", info_gain, "Pass model.info_gain.", allow_zero=True)
    require_positive("norm_bound", norm_bound, "Pass a bound of the RKHS norm of the objective.", allow_zero=True)
    require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
    require_positive("eta", eta, "Pass the regulariser of the model, for instance 0.1.")
    require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
    logdet = 2 * torch.as_tensor(info_gain)
    b, sigma, eta = (
        torch.as_tensor(value, dtype=logdet.dtype, device=logdet.device) for value in (norm_bound, noise_scale, eta)
    )
    return b + sigma / eta.sqrt() * (2 * math.log(1 / delta) + logdet).sqrt()
