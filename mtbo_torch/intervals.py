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
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from mtbo_torch.checks import require_positive, require_probability
from mtbo_torch.confidence import mixture_deviation
from mtbo_torch.linalg import root_of
from mtbo_torch.regression import Belief, KroneckerRegression, NystromRegression, SpectralRegression
from mtbo_torch.surrogate import Surrogate

# Regularizers in units of the noise's variance; the first is the mixture's own.
GRID = (1.0, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0, 100.0)


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
        if isinstance(regression, NystromRegression) or regression.noise.shape[-2:] != (1, 1):
            raise UnsupportedError(
                "Intervals are for exact models with one noise for all tasks and observations, got "
                f"{type(regression).__name__} with noise of shape {tuple(regression.noise.shape)}. Use "
                "ExactMultiTaskGP with one eta."
            )
        alphas = regression.train_X.new_tensor(GRID) * float(self.noise_scale) ** 2
        noise = alphas.reshape(-1, *[1] * (regression.train_X.dim()))
        if isinstance(regression, KroneckerRegression) and regression.kernel.shared and not grows:
            whole, X, Y = regression.kernel.whole, regression.train_X, regression.train_Y
            return replace(surrogate, regression=SpectralRegression.fit(whole, noise, X, Y), tracking=None)
        return replace(surrogate, regression=regression.with_noise(noise), tracking=None)

    def radii(self, swept: Surrogate) -> Tensor:
        r"""Return :math:`\beta_\alpha`, ``A x (b)``, of a surrogate that :meth:`sweep` gave.

        If no function of the norm that is presumed explains the data, they are those of the smallest norm that does.
        """
        squares = self._squares(swept)
        return (squares - squares.amin(dim=0).clamp_max(0)).sqrt()

    def smallest_norm(self, swept: Surrogate) -> Tensor:
        """Return the smallest norm bound, ``(b)``, with which some function explains the data."""
        b = torch.as_tensor(self.norm_bound).to(swept.regression.train_X)
        return (b.square() - self._squares(swept).amin(dim=0)).clamp_min(0).sqrt()

    def _squares(self, swept: Surrogate) -> Tensor:
        regression, sigma = swept.regression, float(self.noise_scale)
        quadratic, gain = regression.quadratic, regression.info_gain[0]
        alphas = regression.noise.flatten(1)[:, 0].reshape(-1, *[1] * gain.dim())
        deviation = mixture_deviation(gain, quadratic[0].clamp_min(0), sigma, sigma**2, self.delta)
        b = torch.as_tensor(self.norm_bound).to(quadratic)
        return b.square() + deviation / alphas - quadratic


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
    mean, variance = belief.mean, belief.variance(directions)
    center = mean if directions is None else mean @ directions.to(mean).mT
    between = [1] * (mean.dim() - 2 - radii.dim())
    radii = radii.to(mean).reshape(len(radii), *between, *radii.shape[1:], 1, 1)
    deviation = radii * root_of(variance)
    return (center - deviation).amax(dim=0), (center + deviation).amin(dim=0)
