r"""Confidence radii :math:`\beta_t`: how many standard deviations the bounds lie from the mean."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.checks import require_broadcast, require_count, require_open_unit, require_positive, require_probability

Number = float | Tensor
# The named schedules of the radius.
RADII = ("theory", "mobo")
QUADRATIC = "Pass model.surrogate.regression.quadratic."
# The default accuracy of a dictionary.
DEFAULT_EPSILON = 0.5


def exact_radius(info_gain: Number, norm_bound: Number, noise_scale: Number, eta: Number, delta: float) -> Tensor:
    r"""Compute the radius of MT-KB (Theorem 2).

    .. math:: \beta_t = b + \frac{\sigma}{\sqrt\eta} \sqrt{2 \log(1/\delta) + \log\det(I + \eta^{-1} G_t)}

    With it, :math:`\|f(x) - \mu_t(x)\| \le \beta_t \|\Gamma_t(x, x)\|^{1/2}` for all x and t with probability at least
    :math:`1 - \delta`. (The paper prints :math:`\sigma / \sqrt n` in Theorem 1, but
    :math:`\sigma / \sqrt\eta` in its proof and in Theorem 2.)

    Args:
        info_gain: ``(b)`` or a number, :math:`\frac12 \log\det(I + \eta^{-1} G_t)`, the ``info_gain`` of an
            :class:`ExactMultiTaskGP`.
        norm_bound: A bound b on the RKHS norm :math:`\|f\|_\Gamma`, at least 0; a number or ``(b)``.
        noise_scale: The sub-Gaussian constant :math:`\sigma` of the noise; for Gaussian noise, its standard deviation.
        eta: The regularizer of the model, :math:`\eta > 0`.
        delta: The probability of failure, in ``(0, 1]``.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch import exact_radius
        >>> exact_radius(info_gain=8.0, norm_bound=2.0, noise_scale=0.5, eta=0.25, delta=1.0)
        tensor(6.)
    """
    gain, b, sigma, eta = _check_numbers(info_gain, norm_bound, noise_scale, eta, delta, name="info_gain")
    return b + sigma / eta**0.5 * (2 * math.log(1 / delta) + 2 * gain).sqrt()


def mixture_radius(info_gain: Number, norm_bound: Number, noise_scale: Number, eta: Number, delta: float) -> Tensor:
    r"""Compute the radius of the martingale mixture at its own regularizer.

    .. math:: \beta_t = \sqrt{b^2 + \frac{\sigma^2}{\eta} \left(2 \log(1/\delta) + \log\det(I + \eta^{-1} G_t)\right)}

    It has the guarantee of :func:`exact_radius`, whose sum of b and a root it replaces by the root of a sum: it is
    never longer, and up to 1.4 times shorter. :mod:`mtbo_torch.intervals` has the proof.

    Args:
        info_gain: ``(b)`` or a number, as in :func:`exact_radius`.
        norm_bound: ``(b)`` or a number, as in :func:`exact_radius`.
        noise_scale: As in :func:`exact_radius`.
        eta: As in :func:`exact_radius`; it has to be chosen before the data.
        delta: As in :func:`exact_radius`.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch.confidence import mixture_radius
        >>> mixture_radius(info_gain=8.0, norm_bound=3.0, noise_scale=0.5, eta=0.25, delta=1.0)
        tensor(5.)
    """
    gain, b, sigma, eta = _check_numbers(info_gain, norm_bound, noise_scale, eta, delta, name="info_gain")
    return (b * b + sigma * sigma / eta * (2 * math.log(1 / delta) + 2 * gain)).sqrt()


def mixture_deviation(info_gain: Number, quadratic: Number, noise_scale: Number, eta: Number, delta: float) -> Tensor:
    r"""Compute how far the values told can be from the true ones, :math:`\|Y - F\|^2 \le R_t^2`, for all t at once.

    .. math:: R_t^2 = 2 \sigma^2 \log(1/\delta) + \sigma^2 \log\det(I + \eta^{-1} G_t)
              + \eta Y_t^T (G_t + \eta I)^{-1} Y_t

    Args:
        info_gain: ``(b)`` or a number, half of the log-determinant.
        quadratic: ``(b)`` or a number, :math:`Y_t^T (G_t + \eta I)^{-1} Y_t`.
        noise_scale: As in :func:`exact_radius`.
        eta: The mixture's regularizer, chosen before the data.
        delta: As in :func:`exact_radius`.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch.confidence import mixture_deviation
        >>> mixture_deviation(info_gain=8.0, quadratic=4.0, noise_scale=0.5, eta=0.25, delta=1.0)
        tensor(5.)
    """
    require_positive("quadratic", quadratic, QUADRATIC, allow_zero=True)
    gain, _, sigma, eta = _check_numbers(info_gain, 0.0, noise_scale, eta, delta, name="info_gain")
    gain, q = _convert(info_gain=gain, quadratic=quadratic)
    return sigma * sigma * (2 * math.log(1 / delta) + 2 * gain) + eta * q


def dual_radius(
    deviation: Number,
    quadratic: Number,
    norm_bound: Number,
    alpha: Number,
    missed: Number = 0.0,
    unexplained: Number = 0.0,
) -> Tensor:
    r"""Compute the radius of the martingale mixture for any regularizer, which may be chosen after the data.

    .. math:: \beta_\alpha = \sqrt{b^2 + R_t^2 / \alpha - Y_t^T (G_t + \alpha I)^{-1} Y_t}

    At the mixture's own regularizer it is :func:`mixture_radius`. With a dictionary, whose span sees the part
    :math:`\tilde G` of G, let :math:`\rho^2` be `missed` and :math:`\kappa` be `unexplained`:

    .. math::

        S^2 = b^2 + 2 \kappa b + R_t^2 / \alpha - Y_t^T (\tilde G_t + \alpha I)^{-1} Y_t, \quad
        \tilde\beta_\alpha = \min\left(S + \rho b, \frac{S}{\sqrt{1 - \tau}}\right), \quad
        \tau^2 = (1 - \tau) \rho^2

    Args:
        deviation: ``(b)`` or a number, :math:`R_t^2`, from :func:`mixture_deviation`.
        quadratic: ``(b)`` or a number, :math:`Y_t^T (G_t + \alpha I)^{-1} Y_t`.
        norm_bound: As in :func:`exact_radius`.
        alpha: The regularizer :math:`\alpha > 0`.
        missed: ``(b)`` or a number, at least :math:`\lambda_{max}(G - \tilde G) / \alpha`.
        unexplained: ``(b)`` or a number, at least :math:`(r^T (G - \tilde G) r)^{1/2} / \alpha` for what the mean on
            the dictionary leaves of the values, :math:`r = Y - \tilde\mu_\alpha`.

    Returns:
        A tensor of the broadcast shape of the arguments; NaN where no function of this norm explains the data.

    Example:
        >>> from mtbo_torch.confidence import dual_radius
        >>> dual_radius(deviation=5.0, quadratic=3.0, norm_bound=1.0, alpha=0.5)  # the root of 1 + 10 - 3
        tensor(2.8284)
        >>> dual_radius(deviation=5.0, quadratic=30.0, norm_bound=1.0, alpha=0.5)
        tensor(nan)
        >>> dual_radius(deviation=5.0, quadratic=4.0, norm_bound=1.0, alpha=0.5, missed=0.25, unexplained=1.0)
        tensor(3.5000)
    """
    require_positive("deviation", deviation, "Pass it from mixture_deviation.", allow_zero=True)
    require_positive("quadratic", quadratic, QUADRATIC, allow_zero=True)
    require_positive("norm_bound", norm_bound, "Pass a bound on the RKHS norm of the objective.", allow_zero=True)
    require_positive("alpha", alpha, "Pass a regularizer, for instance the noise's variance.")
    require_positive("missed", missed, "Pass how much the dictionary misses.", allow_zero=True)
    require_positive("unexplained", unexplained, "Pass what may hide in what the dictionary misses.", allow_zero=True)
    R, q, b, alpha = _convert(deviation=deviation, quadratic=quadratic, norm_bound=norm_bound, alpha=alpha)
    _, rho2, kappa = _convert(deviation=R, missed=missed, unexplained=unexplained)
    b, rho2 = (x if isinstance(x, Tensor) else torch.tensor(x, dtype=R.dtype) for x in (b, rho2))
    return widen_for_missed((b.square() + 2 * kappa * b + R / alpha - q).sqrt(), b, rho2)


def widen_for_missed(radius: Tensor, norm_bound: Tensor, missed: Tensor) -> Tensor:
    r"""Return the radius for a dictionary's covariance, from S in that of all the data; see :func:`dual_radius`.

    Args:
        radius: ``(b)``, S.
        norm_bound: ``(b)``, b.
        missed: ``(b)``, :math:`\rho^2`.

    Example:
        >>> import torch
        >>> from mtbo_torch.confidence import widen_for_missed
        >>> widen_for_missed(torch.tensor(3.0), norm_bound=torch.tensor(1.0), missed=torch.tensor(0.25))
        tensor(3.5000)
    """
    # With tau^2 = (1 - tau) rho^2, the root of 1 / (1 - tau) is (rho + sqrt(rho^2 + 4)) / 2.
    rho = missed.sqrt()
    return torch.minimum(torch.addcmul(radius, rho, norm_bound), radius * (rho + (missed + 4).sqrt()) / 2)


def nystrom_radius(
    info_gain: Number, norm_bound: Number, noise_scale: Number, eta: Number, delta: float, epsilon: float
) -> Tensor:
    r"""Compute the radius of MT-BKB (Theorem 3).

    .. math::

        \tilde\beta_t = b \left(1 + \frac1{\sqrt{1 - \epsilon}}\right) + \frac{\sigma}{\sqrt\eta}
        \sqrt{2 \log(2 / \delta) + \rho \sum_s \log\det(I + \eta^{-1} \tilde\Gamma_{s-1}(x_s, x_s))},
        \quad \rho = \frac{1 + \epsilon}{1 - \epsilon}

    With it, the bound of :func:`exact_radius` holds for a :class:`NystromMultiTaskGP` whose dictionary was drawn with
    :func:`theory_oversampling`.

    Args:
        info_gain: ``(b)`` or a number, half of the sum, the ``info_gain`` of a :class:`NystromMultiTaskGP`.
        norm_bound: A bound b on the RKHS norm :math:`\|f\|_\Gamma`, at least 0; a number or ``(b)``.
        noise_scale: The sub-Gaussian constant :math:`\sigma` of the noise; for Gaussian noise, its standard deviation.
        eta: The regularizer of the model, :math:`\eta > 0`.
        delta: The probability of failure, in ``(0, 1]``.
        epsilon: The accuracy of the dictionary, in ``(0, 1)``.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch import nystrom_radius
        >>> nystrom_radius(info_gain=0.0, norm_bound=1.0, noise_scale=0.0, eta=0.1, delta=0.1, epsilon=0.75)
        tensor(3.)
    """
    gain, b, sigma, eta = _check_numbers(info_gain, norm_bound, noise_scale, eta, delta, name="info_gain")
    rho = _compute_rho(epsilon)
    noise_part = sigma / eta**0.5 * (2 * math.log(2 / delta) + 2 * rho * gain).sqrt()
    return b * (1 + 1 / math.sqrt(1 - epsilon)) + noise_part


def independent_radius(
    largest_gain: Number, num_tasks: int, norm_bound: Number, noise_scale: Number, eta: Number, delta: float
) -> Tensor:
    r"""Compute the radius of IT-KB: the radius of one task (Chowdhury & Gopalan 2017) times :math:`\sqrt n`.

    .. math:: \sqrt n \left(b + \frac{\sigma}{\sqrt\eta} \sqrt{2 (\gamma_t + 1 + \log(1/\delta))}\right)

    Args:
        largest_gain: ``(b)`` or a number, :math:`\gamma_t`, the largest information gain of a single task.
        num_tasks: The number of tasks n.
        norm_bound: A bound b on the RKHS norm of every task.
        noise_scale: As in :func:`exact_radius`.
        eta: As in :func:`exact_radius`.
        delta: The probability of failure, in ``(0, 1]``.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch.confidence import independent_radius
        >>> independent_radius(largest_gain=1.0, num_tasks=4, norm_bound=1.0, noise_scale=0.5, eta=0.25, delta=1.0)
        tensor(6.)
    """
    require_positive("largest_gain", largest_gain, "Pass the gain of one task.", allow_zero=True)
    require_count("num_tasks", num_tasks, "Pass the number of tasks.")
    return math.sqrt(num_tasks) * exact_radius(largest_gain + 1, norm_bound, noise_scale, eta, delta)


def independent_nystrom_radius(
    effective_dimension: Number,
    num_observations: int,
    largest_variance: Number,
    num_tasks: int,
    norm_bound: Number,
    noise_scale: Number,
    eta: Number,
    delta: float,
    epsilon: float,
) -> Tensor:
    r"""Compute the radius of IT-BKB: the radius of one task (Calandriello et al. 2019) times :math:`\sqrt n`.

    .. math::

        \frac{\sqrt n}{\sqrt\eta} \left(2 \sigma \sqrt{\rho \log(\kappa^2 t) \sum_s \tilde\sigma_t^2(x_s) / \eta
        + \log(1 / \delta)} + \left(1 + \frac1{\sqrt{1 - \epsilon}}\right) \sqrt\eta\, b\right),
        \quad \rho = \frac{1 + \epsilon}{1 - \epsilon}

    Args:
        effective_dimension: ``(b)`` or a number, :math:`\sum_s \tilde\sigma_t^2(x_s) / \eta`, with the largest variance
            of a task at :math:`x_s`.
        num_observations: t. (A negative logarithm is replaced by zero.)
        largest_variance: :math:`\kappa^2`, the largest prior variance of a task.
        num_tasks: The number of tasks n.
        norm_bound: A bound b on the RKHS norm of every task.
        noise_scale: As in :func:`exact_radius`.
        eta: As in :func:`exact_radius`.
        delta: The probability of failure, in ``(0, 1]``.
        epsilon: The accuracy of the dictionary, in ``(0, 1)``.

    Returns:
        A tensor of the broadcast shape of the arguments.

    Example:
        >>> from mtbo_torch.confidence import independent_nystrom_radius
        >>> independent_nystrom_radius(
        ...     effective_dimension=3.0, num_observations=1, largest_variance=1.0, num_tasks=4,
        ...     norm_bound=1.0, noise_scale=1.0, eta=0.25, delta=1.0, epsilon=0.75,
        ... )
        tensor(6.)
    """
    name = "effective_dimension"
    total, b, sigma, eta = _check_numbers(effective_dimension, norm_bound, noise_scale, eta, delta, name)
    require_count("num_tasks", num_tasks, "Pass the number of tasks.")
    require_positive("largest_variance", largest_variance, "Pass the largest prior variance.", allow_zero=True)
    if not isinstance(num_observations, int) or isinstance(num_observations, bool) or num_observations < 0:
        raise ValueError(f"num_observations should be an integer >= 0, got {num_observations!r}. Pass t.")
    rho = _compute_rho(epsilon)
    kappa = torch.as_tensor(largest_variance, dtype=total.dtype, device=total.device)
    logarithm = (kappa * max(num_observations, 1)).log().clamp_min(0)
    noise_part = 2 * sigma * (rho * logarithm * total + math.log(1 / delta)).sqrt() / eta**0.5
    return math.sqrt(num_tasks) * (noise_part + (1 + 1 / math.sqrt(1 - epsilon)) * b)


def mobo_radius(round_number: int) -> float:
    r"""Compute MOBO's radius :math:`\sqrt{0.125 \log(2 t + 1)}` in round t (Paria et al. 2019).

    It is a heuristic without a guarantee.

    Args:
        round_number: t = 1, 2, ...

    Example:
        >>> from mtbo_torch.confidence import mobo_radius
        >>> round(mobo_radius(1), 4)
        0.3706
    """
    require_count("round_number", round_number, "Rounds are counted from one.")
    return math.sqrt(0.125 * math.log(2 * round_number + 1))


def theory_oversampling(num_rounds: int, delta: float, epsilon: float) -> float:
    r"""Compute the paper's oversampling :math:`q = 6 \rho \log(4 T / \delta) / \epsilon^2` (Theorem 3).

    With it, a dictionary that keeps a point with probability :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)` has the
    accuracy :math:`\epsilon` in all T rounds, with :math:`\rho = (1 + \epsilon) / (1 - \epsilon)`. (The paper omits
    the factor :math:`1 / \eta`, which the proof by Calandriello et al. 2019 needs.) At common settings q is 600 to 800
    and keeps nearly every point; in practice 3, the default of :class:`MTBKB`, is enough.

    Args:
        num_rounds: The horizon T.
        delta: The probability of failure, in ``(0, 1]``.
        epsilon: The accuracy of the dictionary, in ``(0, 1)``.

    Example:
        >>> from mtbo_torch import theory_oversampling
        >>> round(theory_oversampling(num_rounds=1000, delta=0.1, epsilon=0.5))
        763
    """
    require_count("num_rounds", num_rounds, "Pass the horizon T.")
    require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
    return 6 * _compute_rho(epsilon) * math.log(4 * num_rounds / delta) / epsilon**2


def _compute_rho(epsilon: float) -> float:
    require_open_unit("epsilon", epsilon, "Pass the accuracy of the dictionary, for instance 0.5.")
    return (1 + epsilon) / (1 - epsilon)


def _check_numbers(
    complexity: Number, norm_bound: Number, noise_scale: Number, eta: Number, delta: float, name: str
) -> tuple[Tensor, Number, Number, Number]:
    """Check the arguments of a radius, and return them as :func:`_convert` does."""
    require_positive(name, complexity, "Pass it from the model.", allow_zero=True)
    require_positive("norm_bound", norm_bound, "Pass a bound on the RKHS norm of the objective.", allow_zero=True)
    require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
    require_positive("eta", eta, "Pass the regularizer of the model, for instance 0.1.")
    require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
    first, b, sigma, eta = _convert(**{name: complexity}, norm_bound=norm_bound, noise_scale=noise_scale, eta=eta)
    return first, b, sigma, eta


def _convert(**numbers: Number) -> tuple[Tensor, *tuple[Any, ...]]:
    """Return numbers, by name, the first as a tensor, and other tensors in its dtype and on its device."""
    *most, last = numbers
    shapes = [value.shape for value in numbers.values() if isinstance(value, Tensor)]
    require_broadcast(f"{', '.join(most)} and {last}", *shapes)
    first, *others = numbers.values()
    first = torch.as_tensor(first)
    first = first if first.is_floating_point() else first.to(torch.get_default_dtype())
    # Python numbers stay what they are: moving one to the device would wait for the device.
    return first, *[x.to(first) if isinstance(x, Tensor) else float(x) for x in others]
