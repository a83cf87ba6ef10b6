"""The algorithms by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from mtbo_torch.experiments.instances import Instances
from mtbo_torch.problems import paper
from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, MTBKB, MTKB, NEHVI, NParEGO, RandomSearch, SobolSearch, Strategy

Builder = Callable[[Instances, type[Scalarization], list[int]], Strategy]


def _make_kernel_builder(strategy_class: Callable[..., Strategy], **options: float | str) -> Builder:
    def build(instances: Instances, scalarization: type[Scalarization], seeds: list[int]) -> Strategy:
        return strategy_class(
            instances.kernel,
            norm_bound=instances.norm_bound,
            noise_scale=instances.noise_scale,
            eta=paper.ETA,
            delta=paper.DELTA,
            scalarization=scalarization,
            seed=seeds,
            num_restarts=paper.NUM_RESTARTS,
            raw_samples=paper.RAW_SAMPLES,
            **instances.space,
            **options,
        )

    return build


def _make_search_builder(strategy_class: Callable[..., Strategy]) -> Builder:
    def build(instances: Instances, scalarization: type[Scalarization], seeds: list[int]) -> Strategy:
        return strategy_class(instances.num_tasks, scalarization=scalarization, seed=seeds, **instances.space)

    return build


_BUDGET = {"epsilon": paper.EPSILON, "oversampling": paper.OVERSAMPLING}
ALGORITHMS: dict[str, Builder] = {
    "MT-KB": _make_kernel_builder(MTKB, bound="norm"),
    "MT-KB-mixture": _make_kernel_builder(MTKB, bound="mixture"),
    "MT-BKB": _make_kernel_builder(MTBKB, bound="norm", **_BUDGET),
    "MT-BKB-mixture": _make_kernel_builder(MTBKB, bound="mixture", **_BUDGET),
    "IT-KB": _make_kernel_builder(ITKB),
    "IT-BKB": _make_kernel_builder(ITBKB, **_BUDGET),
    "MOBO": _make_kernel_builder(MOBO),
    "random": _make_search_builder(RandomSearch),
    "Sobol": _make_search_builder(SobolSearch),
    "MT-KB-ellipsoid": _make_kernel_builder(MTKB, bound="ellipsoid"),
    "MT-BKB-ellipsoid": _make_kernel_builder(MTBKB, bound="ellipsoid", **_BUDGET),
    "qLogNParEGO": _make_search_builder(NParEGO),
    "qLogNEHVI": _make_search_builder(NEHVI),
}
# The last four only run when named: more curves would crowd the figures, and BoTorch's methods take seconds a round.
DEFAULT_ALGORITHMS = tuple(ALGORITHMS)[:-4]
# Those with a certificate from the radius and the norms; those with a mixture have their own.
CERTIFIED = ("MT-KB", "MT-KB-ellipsoid", "MT-BKB", "MT-BKB-ellipsoid")


def resolve_names(what: str, wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names that the wanted ones stand for, ignoring case, dashes and underscores.

    Raises:
        ValueError: If a name is not known, with the list of names and the nearest match.
    """
    normalized = {_normalize(name): name for name in known}
    names = []
    for name in wanted:
        if _normalize(name) not in normalized:
            nearest = difflib.get_close_matches(_normalize(name), normalized, n=1, cutoff=0.4)
            hint = f" Did you mean {normalized[nearest[0]]}?" if nearest else ""
            raise ValueError(f"{what} should be among {', '.join(known)}, got {name}.{hint}")
        names.append(normalized[_normalize(name)])
    return list(dict.fromkeys(names))


def _normalize(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
