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
    regularized = gram(gamma, X, X, n) + noise_matrix(eta, t, n)
    G_x = gram(gamma, X, Z, n)
    mean = G_x.T @ np.linalg.solve(regularized, Y.reshape(-1))
    covariance = gram(gamma, Z, Z, n) - G_x.T @ np.linalg.solve(regularized, G_x)
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
    scalarized = [chebyshev(weights, mu, np.zeros(n)) for mu in mean]
    return np.array([s + max(weights) * radius * math.sqrt(v) for s, v in zip(scalarized, norms, strict=True)])


def nystrom_posterior(
    gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float, dictionary: list[int], probs: np.ndarray, Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """mu~_t at each point of Z and the joint Gamma~_t over Z, as printed in Algorithm 2: weights and pseudo-inverse."""
    n, m = Y.shape[1], len(dictionary)
    weights = np.repeat(1 / np.sqrt(probs[dictionary]), n)
    atoms = X[dictionary]
    G = weights[:, None] * gram(gamma, atoms, atoms, n) * weights[None, :]
    values, vectors = np.linalg.eigh(G)
    root = vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T
    pseudo = np.linalg.pinv(root, rcond=1e-7, hermitian=True)

    def embed(points: np.ndarray) -> np.ndarray:
        return pseudo @ (weights[:, None] * gram(gamma, atoms, points, n))

    V, total = np.zeros((n * m, n * m)), np.zeros(n * m)
    for x, y in zip(X, Y, strict=True):
        phi = embed(x[None])
        V += phi @ phi.T
        total += phi @ y
    inverse = np.linalg.inv(V + eta * np.eye(n * m))
    phi = embed(Z)
    mean = phi.T @ inverse @ total
    covariance = gram(gamma, Z, Z, n) - phi.T @ phi + eta * phi.T @ inverse @ phi
    return mean.reshape(len(Z), n), covariance


def bkb_posterior(
    k: Scalar, X: np.ndarray, y: np.ndarray, eta: float, dictionary: list[int], Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of single-task BKB (Calandriello et al. 2019, Section 3), with a plain inverse."""
    atoms = X[dictionary]
    K_mm = np.array([[k(a, b) for b in atoms] for a in atoms])
    root = np.linalg.cholesky(K_mm)
    z = lambda x: np.linalg.solve(root, [k(a, x) for a in atoms])  # noqa: E731
    features = np.array([z(x) for x in X])
    V = features.T @ features + eta * np.eye(len(dictionary))
    means, variances = [], []
    for x in Z:
        phi = z(x)
        means.append(phi @ np.linalg.solve(V, features.T @ y))
        variances.append(k(x, x) - phi @ phi + eta * phi @ np.linalg.solve(V, phi))
    return np.array(means), np.array(variances)


def nystrom_radius(gain: float, b: float, sigma: float, eta: float, delta: float, epsilon: float) -> float:
    """beta~_t of Theorem 3; gain is half of the sum of log-determinants."""
    rho = (1 + epsilon) / (1 - epsilon)
    deviation = math.sqrt(2 * math.log(2 / delta) + rho * 2 * gain)
    return b * (1 + 1 / math.sqrt(1 - epsilon)) + sigma / math.sqrt(eta) * deviation


def cut(gamma: Gamma) -> Gamma:
    """The same tasks without what they share."""
    return lambda x, y: np.diag(np.diag(gamma(x, y)))


def largest_gain(gamma: Gamma, X: np.ndarray, eta: float, n: int) -> float:
    """max_j 1/2 log det(I + K_j / eta), task by task."""
    gains = []
    for j in range(n):
        K = np.array([[gamma(x, y)[j, j] for y in X] for x in X]).reshape(len(X), len(X))
        gains.append(0.5 * np.linalg.slogdet(np.eye(len(X)) + K / eta)[1])
    return max(gains)


def independent_radius(gain: float, n: int, b: float, sigma: float, eta: float, delta: float) -> float:
    """GP-UCB's radius (Chowdhury & Gopalan 2017, Theorem 2), times sqrt(n)."""
    return math.sqrt(n) * (b + sigma / math.sqrt(eta) * math.sqrt(2 * (gain + 1 + math.log(1 / delta))))


def independent_nystrom_radius(
    variances: np.ndarray, kappa2: float, n: int, b: float, sigma: float, eta: float, delta: float, epsilon: float
) -> float:
    """BKB's radius (Calandriello et al. 2019, Theorem 2), times sqrt(n); variances t x n at the t points observed."""
    rho, t = (1 + epsilon) / (1 - epsilon), len(variances)
    total = max(sum(variances[s][j] / eta for s in range(t)) for j in range(n))
    noise = 2 * sigma * math.sqrt(rho * math.log(kappa2 * t) * total + math.log(1 / delta))
    return math.sqrt(n) * (noise + (1 + 1 / math.sqrt(1 - epsilon)) * math.sqrt(eta) * b) / math.sqrt(eta)


def theorem_2(
    L: float, b: float, sigma: float, eta: float, delta: float, kappa: float, gain: float, norms: list
) -> float:
    """The printed right-hand side with the realized gain, norms ||Gamma_t(x_t, x_t)|| after each observation."""
    radius = b + sigma / math.sqrt(eta) * math.sqrt(2 * (math.log(1 / delta) + gain))
    return 2 * L * radius * math.sqrt((1 + kappa / eta) * len(norms) * sum(norms))


def perturbed_sine(x: float, weights: list[float]) -> float:
    bumps = [math.exp(-((x - c) ** 2) / (2 * 0.1**2)) for c in (0.05, 0.4, 0.7)]
    return math.sin(2 * math.pi * x) + 0.6 * sum(w * bump for w, bump in zip(weights, bumps, strict=True))


def log_likelihood(gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float | np.ndarray) -> float:
    """log N(vec(Y); 0, G_t + I x diag(eta))."""
    t, n = Y.shape
    return _log_density(gram(gamma, X, X, n) + noise_matrix(eta, t, n), Y.reshape(-1))


def nystrom_log_likelihood(
    gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float | np.ndarray, atoms: np.ndarray
) -> float:
    """The bound of Titsias (2009): log N(vec(Y); 0, Q + noise) - 1/2 tr(noise^-1 (G - Q)), Q = G_xD G_DD^+ G_Dx."""
    t, n = Y.shape
    cross, noise = gram(gamma, X, atoms, n), noise_matrix(eta, t, n)
    Q = cross @ np.linalg.pinv(gram(gamma, atoms, atoms, n), rcond=1e-10, hermitian=True) @ cross.T
    unseen = np.trace(np.linalg.solve(noise, gram(gamma, X, X, n) - Q))
    return _log_density(Q + noise, Y.reshape(-1)) - unseen / 2


def _log_density(covariance: np.ndarray, y: np.ndarray) -> float:
    quadratic = y @ np.linalg.solve(covariance, y)
    return -0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + len(y) * math.log(2 * math.pi))


def mean_norm(gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float | np.ndarray) -> float:
    """The RKHS norm of mu_t = sum_i Gamma(., x_i) c_i: the root of sum_ij c_i^T Gamma(x_i, x_j) c_j."""
    t, n = Y.shape
    G = gram(gamma, X, X, n)
    c = np.linalg.solve(G + noise_matrix(eta, t, n), Y.reshape(-1))
    return math.sqrt(c @ G @ c)


def given_seen(
    gamma: Gamma, X: np.ndarray, Y: np.ndarray, noise: float | np.ndarray, Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """Mean, joint covariance, information gain, norm of the mean and log-likelihood, given the values that are not NaN.

    The noise has one entry for all values, for each task, or for each value.
    """
    t, n = Y.shape
    seen = [i for i, y in enumerate(Y.reshape(-1)) if not math.isnan(y)]
    G = gram(gamma, X, X, n)[np.ix_(seen, seen)]
    y, eta = Y.reshape(-1)[seen], np.broadcast_to(noise, (t, n)).reshape(-1)[seen]
    regularized, cross = G + np.diag(eta), gram(gamma, X, Z, n)[seen]
    dual = np.linalg.solve(regularized, y)
    mean = (cross.T @ dual).reshape(len(Z), n)
    covariance = gram(gamma, Z, Z, n) - cross.T @ np.linalg.solve(regularized, cross)
    gain = 0.5 * np.linalg.slogdet(np.eye(len(seen)) + G @ np.diag(1 / eta))[1]
    return mean, covariance, gain, math.sqrt(max(dual @ G @ dual, 0)), _log_density(regularized, y)


def leave_one_out(gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of y_i, noise included, from all other points: one regression for each point.

    The noise has one entry for all values, for each task, or for each value. NaN, given or returned, is not seen.
    """
    t, n = Y.shape
    noise = np.broadcast_to(eta, (t, n))
    means, covariances = np.full((t, n), np.nan), np.full((t, n, n), np.nan)
    for i in range(t):
        others = [j for j in range(t) if j != i]
        mean, covariance, *_ = given_seen(gamma, X[others], Y[others], noise[others], X[i : i + 1])
        for a in range(n):
            if math.isnan(Y[i, a]):
                continue
            means[i, a] = mean[0, a]
            for b in range(n):
                if not math.isnan(Y[i, b]):
                    covariances[i, a, b] = covariance[a, b] + (noise[i, a] if a == b else 0)
    return means, covariances


def hypervolume_scalar(weights: np.ndarray, y: np.ndarray, z: np.ndarray) -> float:
    """min_i max(0, (y_i - z_i) / lambda_i)^n (Zhang & Golovin 2020)."""
    return min(max(0.0, (v - r) / w) ** len(weights) for w, v, r in zip(weights, y, z, strict=True))


def linear_ellipsoid(weights: np.ndarray, radius: float, mean: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """lambda^T mu + beta (lambda^T Gamma lambda)^(1/2), from ``q x n`` and ``q x n x n``."""
    pairs = zip(mean, covariances, strict=True)
    return np.array([linear(weights, mu) + radius * math.sqrt(weights @ gamma @ weights) for mu, gamma in pairs])


def monotone_ellipsoid(
    s: Callable[[np.ndarray], float], radius: float, mean: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """s(mu + beta diag(Gamma)^(1/2)), from ``q x n`` and ``q x n x n``."""
    pairs = zip(mean, covariances, strict=True)
    return np.array(
        [s(np.array([m + radius * math.sqrt(v) for m, v in zip(mu, np.diag(g), strict=True)])) for mu, g in pairs]
    )


def nystrom_posterior_of_tasks(
    gamma: Gamma, X: np.ndarray, Y: np.ndarray, eta: np.ndarray, dictionary: list[int], Z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """mu~_t and the blocks of Gamma~_t when each task has its noise: in units in which the noise is one."""
    n = Y.shape[1]
    sd = np.sqrt(np.broadcast_to(eta, n))
    whitened = lambda x, y: gamma(x, y) / np.outer(sd, sd)  # noqa: E731
    mean, covariance = nystrom_posterior(whitened, X, Y / sd, 1.0, dictionary, np.ones(len(X)), Z)
    return mean * sd, blocks(covariance, n) * np.outer(sd, sd)
