r"""Confidence intervals of every task, at every point and in every round at once, as tight as the data allow.

Let :math:`Y` be the values told, stacked, :math:`F` the true ones, and :math:`G` the Gram matrix of the kernel. The
noise is :math:`\sigma`-sub-Gaussian as a vector, :math:`E \exp(u \cdot \epsilon) \le \exp(\sigma^2 \|u\|^2 / 2)`, each
point is chosen before its noise, and :math:`\|f\|_\Gamma \le b`: the assumptions of the paper.

1. *One function.* For a function g that is fixed before the data,
   :math:`\prod_s \exp((\|y_s - f(x_s)\|^2 - \|y_s - g(x_s)\|^2) / 2 \sigma^2)` is a supermartingale: with
   :math:`d = f(x_s) - g(x_s)` a factor is :math:`\exp(-(2 d \cdot \epsilon_s + \|d\|^2) / 2 \sigma^2)`, whose mean is
   at most :math:`\exp(\|d\|^2 / 2 \sigma^2 - \|d\|^2 / 2 \sigma^2) = 1`.
2. *All at once.* So is its average over :math:`g \sim GP(0, (\sigma^2 / \eta_0) \Gamma)`, for an :math:`\eta_0` that is
   fixed before the data. The average is a Gaussian integral, and by Ville's inequality it stays below
   :math:`1 / \delta` for all t with probability :math:`1 - \delta`. Its logarithm says

   .. math:: \|Y - F\|^2 \le R^2 := 2 \sigma^2 \log(1 / \delta) + \sigma^2 \log\det(I + G / \eta_0)
             + \eta_0 Y^T (G + \eta_0 I)^{-1} Y.

3. *Any regularizer.* For every :math:`\alpha > 0`, chosen after the data if you like,
   :math:`\|Y - F\|^2 + \alpha \|f\|^2 \le R^2 + \alpha b^2`. The left side is a quadratic function of f. Its minimum,
   :math:`\alpha Y^T (G + \alpha I)^{-1} Y`, is at the regression :math:`\mu_\alpha` with that regularizer, and its
   curvature is what makes :math:`\Gamma_\alpha`: by Cauchy and Schwarz, for every point x and direction e,

   .. math:: |e^T (f(x) - \mu_\alpha(x))| \le \beta_\alpha \sqrt{e^T \Gamma_\alpha(x, x) e}, \quad
             \beta_\alpha^2 = b^2 + \frac{R^2}{\alpha} - Y^T (G + \alpha I)^{-1} Y.

4. All of this holds on one event. So the smallest upper and the largest lower bound over a grid of :math:`\alpha` hold,
   too. If :math:`\beta_\alpha^2 < 0` for some :math:`\alpha`, no function of norm b explains the data at the level
   :math:`\delta`.

*Dictionaries.* Let P project on the span of a dictionary, however it was chosen, :math:`\Phi` take a function to its
values at the data, :math:`A = \Phi^* \Phi`, :math:`G = \Phi \Phi^*` and :math:`\tilde G = \Phi P \Phi^* \le G`. The
accuracy of the dictionary is then not presumed but found from the data:

5. :math:`\log\det(I + G / \eta_0) \le \log\det(I + \tilde G / \eta_0) + tr(G - \tilde G) / \eta_0`, as the logarithm
   is concave, and :math:`Y^T (G + \eta_0 I)^{-1} Y \le Y^T (\tilde G + \eta_0 I)^{-1} Y`. So there is an upper bound of
   :math:`R^2` that needs the dictionary only.
6. The mean :math:`\tilde\mu` on the dictionary minimizes
   :math:`Q(g) = \|Y - \Phi g\|^2 + \alpha \|g\|^2` over the span. With its residuals
   :math:`r = Y - \Phi \tilde\mu`, half of the gradient of Q is :math:`-(I - P) \Phi^* r` there, so for every f

   .. math:: Q(f) = Q(\tilde\mu) - 2 \langle (I - P) \Phi^* r, f \rangle + \|\Phi h\|^2 + \alpha \|h\|^2,
             \quad h = f - \tilde\mu.

   Here :math:`Q(\tilde\mu) = \alpha Y^T (\tilde G + \alpha I)^{-1} Y`, and the inner product is at most
   :math:`b (r^T (G - \tilde G) r)^{1/2} =: b \kappa \alpha`. With step 3,

   .. math:: \|\Phi h\|^2 / \alpha + \|h\|^2 \le S^2 := b^2 + 2 \kappa b + \frac{R^2}{\alpha}
             - Y^T (\tilde G + \alpha I)^{-1} Y.

7. The dictionary's covariance belongs to :math:`P A P` in place of A. Let
   :math:`\rho^2 \ge \lambda_{max}(G - \tilde G) / \alpha`. Outside the span h is f, so
   :math:`\|\Phi P h\| \le \|\Phi h\| + \rho \sqrt\alpha b`; and for every :math:`\tau` in (0, 1),
   :math:`\|\Phi h\|^2 \ge (1 - \tau) \|\Phi P h\|^2 - (1 / \tau - 1) \rho^2 \alpha \|h\|^2`. Either way bounds
   :math:`\|\Phi P h\|^2 / \alpha + \|h\|^2`: the first by :math:`(S + \rho b)^2`, the second, with
   :math:`\tau^2 = (1 - \tau) \rho^2`, by :math:`S^2 / (1 - \tau)`. By Cauchy and Schwarz

   .. math:: |e^T (f(x) - \tilde\mu_\alpha(x))| \le \min\left(S + \rho b, \frac{S}{\sqrt{1 - \tau}}\right)
             \sqrt{e^T \tilde\Gamma_\alpha(x, x) e}.

   For :math:`\rho^2` we take the trace of :math:`G - \tilde G` (of one direction of the tasks), for :math:`\kappa` the
   sum of the roots of its diagonal times what is left at each distinct point: both take one pass over these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from mtbo_torch.checks import require_positive, require_probability
from mtbo_torch.confidence import widen_for_missed
from mtbo_torch.linalg import root_of
from mtbo_torch.regression import Belief, KroneckerRegression, SpectralRegression
from mtbo_torch.regression.kronecker import GroupedKernel
from mtbo_torch.surrogate import Surrogate

# Regularizers in units of the noise's variance; the first is the mixture's own.
GRID = (1.0, 0.1, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""The presumptions about an objective and its noise, for intervals that hold with probability :math:`1 - \delta`.

    The intervals are those of the martingale mixture with :math:`\eta_0 = \sigma^2`; see :mod:`mtbo_torch.intervals`
    for the equations and their proof.

    Args:
        norm_bound: A bound b on the RKHS norm of the objective about its prior mean, a number or ``(b)``. With an
            outcome transform it is meant behind that, and so is the noise.
        noise_scale: The noise's sub-Gaussian constant :math:`\sigma`, such as its standard deviation.
        delta: The probability with which the intervals may fail, in ``(0, 1]``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel, Mixture
        >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> values = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> model = ExactMultiTaskGP(X, values, covar_module=kernel, eta=0.1)
        >>> lower, upper = model.intervals(X, Mixture(norm_bound=2.0, noise_scale=0.1))
        >>> lower.shape, bool(((lower < values) & (values < upper)).all())
        (torch.Size([5, 2]), True)
    """

    norm_bound: float | Tensor
    noise_scale: float
    delta: float = 0.1

    def __post_init__(self) -> None:
        require_positive("norm_bound", self.norm_bound, "Pass a bound on the objective's RKHS norm.", allow_zero=True)
        require_positive("noise_scale", self.noise_scale, "Pass the noise's standard deviation.")
        if isinstance(self.noise_scale, Tensor) and self.noise_scale.dim():
            raise ValueError(
                f"noise_scale should be one number, got shape {tuple(self.noise_scale.shape)}. Pass the largest."
            )
        require_probability("delta", self.delta, "Pass the probability with which the bounds may fail, such as 0.1.")

    def sweep(self, surrogate: Surrogate, grows: bool = False) -> Surrogate:
        """Return the same observations with every regularizer of the grid, in a dimension in front.

        Args:
            surrogate: What is known.
            grows: Whether more observations are to be appended, for which there is a cheaper way.
        """
        regression = surrogate.regression
        if regression.noise.shape[-2] != 1:
            raise UnsupportedError(
                "Intervals are for models whose observations all have the same noise, got noise of shape "
                f"{tuple(regression.noise.shape)}. Use one eta."
            )
        alphas = regression.train_X.new_tensor(GRID) * float(self.noise_scale) ** 2
        noise = alphas.reshape(-1, *[1] * (regression.train_X.dim()))
        kernel = regression.kernel if isinstance(regression, KroneckerRegression) else None
        if isinstance(kernel, GroupedKernel) and kernel.shared and not grows:
            whole, X, Y = kernel.whole, regression.train_X, regression.train_Y
            return replace(surrogate, regression=SpectralRegression.fit(whole, noise, X, Y), tracking=None)
        return replace(surrogate, regression=regression.with_noise(noise), tracking=None)

    def judge(self, swept: Surrogate) -> tuple[Tensor, Tensor]:
        r"""Return the radii :math:`\beta_\alpha`, ``A x (b)``, and the smallest norm, ``(b)``, that explains the data.

        If that is larger than the norm presumed, the radii are those of the smallest one.

        Args:
            swept: What :meth:`sweep` gave.
        """
        audit, sigma = swept.audit(), float(self.noise_scale)
        alphas = swept.regression.noise[..., 0, 0]
        # As in mixture_deviation, which checks its arguments, with sigma^2 as the mixture's regularizer.
        deviation = torch.add(audit.quadratic[0].clamp_min(0), audit.gain, alpha=2) + 2 * math.log(1 / self.delta)
        rest, kappa = sigma**2 * deviation / alphas - audit.quadratic, audit.unexplained
        # Where b^2 + 2 kappa b + rest is zero.
        needed = ((kappa.square() - rest.clamp_max(0)).sqrt() - kappa).amax(dim=0)
        b = needed.clamp_min(self.norm_bound.to(needed) if isinstance(self.norm_bound, Tensor) else self.norm_bound)
        root = torch.addcmul(rest, torch.add(b, kappa, alpha=2), b).clamp_min(0).sqrt()
        return widen_for_missed(root, b, audit.missed), needed


def find_bounds(belief: Belief, radii: Tensor, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper bounds ``... x q x k`` along directions, or of the tasks.

    Args:
        belief: What is known with every regularizer, ``A x ... x q``.
        radii: ``A x (b)``.
        directions: ``(b) x k x n``; None for the tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch.intervals import find_bounds
        >>> from mtbo_torch.regression import PointBelief
        >>> variances = torch.tensor([4.0, 1.0]).reshape(2, 1, 1, 1)  # two regularizers, one point, one task
        >>> find_bounds(PointBelief(torch.zeros(2, 1, 1), variances), radii=torch.tensor([1.0, 3.0]))
        (tensor([[-2.]]), tensor([[2.]]))
    """
    lower, upper = find_both_bounds(belief, radii, directions).unbind()
    return lower, upper


def find_both_bounds(belief: Belief, radii: Tensor, directions: Tensor | None = None) -> Tensor:
    """Return the bounds of :func:`find_bounds` in one tensor, ``2 x ... x q x k``.

    Args:
        belief: What is known with every regularizer, ``A x ... x q``.
        radii: ``A x (b)``.
        directions: ``(b) x k x n``; None for the tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch.intervals import find_both_bounds
        >>> from mtbo_torch.regression import PointBelief
        >>> find_both_bounds(PointBelief(torch.zeros(1, 1, 1), torch.ones(1, 1, 1, 1)), torch.tensor([2.0])).flatten()
        tensor([-2.,  2.])
    """
    mean, variance = belief.mean, belief.variance(directions)
    center = mean if directions is None else mean @ directions.to(mean).mT
    between = [1] * (mean.dim() - 2 - radii.dim())
    radii = radii.to(mean).reshape(radii.shape[0], *between, *radii.shape[1:], 1, 1)
    root = root_of(variance)
    # Both have their points next to each other in memory where there are many, and so should the results.
    lower, upper = torch.addcmul(center, radii, root, value=-1), torch.addcmul(center, radii, root)
    return torch.stack([lower.mT.amax(dim=0), upper.mT.amin(dim=0)]).mT
