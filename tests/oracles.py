"""Naive transcriptions of the paper's formulae: numpy, loops, nothing shared with the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Gamma = Callable[[np.ndarray, np.ndarray], np.ndarray]
Scalar = Callable[[np.ndarray, np.ndarray], float]


def rbf(lengthscale: float, dims: list[int] | None = None) -> Scalar:
    def k(x: np.ndarray, y: np.ndarray) -> float:
        x, y = (x, y) if dims is None else (x[dims], y[dims])
        return math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * lengthscale**2))

    return k


def matern52(lengthscale: float, dims: list[int] | None = None) -> Scalar:
    def k(x: np.ndarray, y: np.ndarray) -> float:
        x, y = (x, y) if dims is None else (x[dims], y[dims])
        r = math.sqrt(5 * sum((a - b) ** 2 for a, b in zip(x, y, strict=True))) / lengthscale
        return (1 + r + r**2 / 3) * math.exp(-r)

    return k


def separable(*terms: tuple[Scalar, np.ndarray]) -> Gamma:
    """Gamma(x, x') = sum_j k_j(x, x') B_j."""
    return lambda x, y: sum(k(x, y) * B for k, B in terms)


def gram(gamma: Gamma, X1: np.ndarray, X2: np.ndarray, n: int) -> np.ndarray:
    """The block matrix [Gamma(x_i, x_j)]_ij."""
    G = np.zeros((n * len(X1), n * len(X2)))
    for i, x in enumerate(X1):
        for j, y in enumerate(X2):
            G[i * n : (i + 1) * n, j * n : (j + 1) * n] = gamma(x, y)
    return G


def noise_matrix(eta: float | np.ndarray, t: int, n: int) -> np.ndarray:
    return np.diag(np.tile(np.broadcast_to(eta, n), t))


def posterior(
    gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float | np.ndarray, Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """mu_t at each point of Z, and the joint Gamma_t over Z (Section 3.1)."""
    t, n = Y.shape
    regularised = gram(gamma, X, X, n) + noise_matrix(eta, t, n)
    G_x = gram(gamma, X, Z, n)
    mean = G_x.T @ np.linalg.solve(regularised, Y.reshape(-1))
    covariance = gram(gamma, Z, Z, n) - G_x.T @ np.linalg.solve(regularised, G_x)
    return mean.reshape(len(Z), n), covariance


def blocks(covariance: np.ndarray, n: int) -> np.ndarray:
    """Gamma_t(x, x) at each point."""
    q = len(covariance) // n
    return np.stack([covariance[i * n : (i + 1) * n, i * n : (i + 1) * n] for i in range(q)])


def operator_norm(matrices: np.ndarray) -> np.ndarray:
    return np.array([np.linalg.norm(matrix, ord=2) for matrix in matrices])


def info_gain(gamma: Gamma, X: np.ndarray, eta: float | np.ndarray, n: int) -> float:
    """1/2 log det(I + G_t Sigma^-1)."""
    t = len(X)
    return 0.5 * np.linalg.slogdet(np.eye(n * t) + gram(gamma, X, X, n) @ np.linalg.inv(noise_matrix(eta, t, n)))[1]


def info_gain_by_rounds(gamma: Gamma, X: np.ndarray, eta: float, n: int) -> float:
    """1/2 sum_s log det(I_n + Gamma_{s-1}(x_s, x_s) / eta), as in Theorem 2."""
    total = 0.0
    for s in range(len(X)):
        covariance = posterior(gamma, X[:s], np.zeros((s, n)), eta, X[s : s + 1])[1]
        total += 0.5 * np.linalg.slogdet(np.eye(n) + covariance / eta)[1]
    return total


def exact_radius(gain: float, b: float, sigma: float, eta: float, delta: float) -> float:
    """beta_t of Theorem 2."""
    return b + sigma / math.sqrt(eta) * math.sqrt(2 * math.log(1 / delta) + 2 * gain)


def linear(weights: np.ndarray, y: np.ndarray) -> float:
    return sum(w * v for w, v in zip(weights, y, strict=True))


def chebyshev(weights: np.ndarray, y: np.ndarray, z: np.ndarray) -> float:
    return min(w * (v - r) for w, v, r in zip(weights, y, z, strict=True))


def chebyshev_ucb(weights: np.ndarray, radius: float, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """s_lambda(mu) + L_lambda beta ||Gamma||^(1/2) with L = max lambda, at each point."""
    n = mean.shape[-1]
    norms = operator_norm(blocks(covariance, n))
    scalarised = [chebyshev(weights, mu, np.zeros(n)) for mu in mean]
    return np.array([s + max(weights) * radius * math.sqrt(v) for s, v in zip(scalarised, norms, strict=True)])
