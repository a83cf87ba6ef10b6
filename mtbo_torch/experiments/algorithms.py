"""The algorithms by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from mtbo_torch.experiments.instances import Instances
from mtbo_torch.problems import paper
from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies import (
    ITBKB,
    ITKB,
    MOBO,
    MTBKB,
    MTKB,
    NEHVI,
    NParEGO,
    RandomSearch,
    SobolSearch,
    Strategy,
)

Builder = Callable[[Instances, type[Scalarization], list[int]], Strategy]


def _kernelized(kind: Callable[..., Strategy], **options: float | str) -> Builder:
    def build(instances: Instances, scalarization: type[Scalarization], seeds: list[int]) -> Strategy:
        return kind(
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


def _plain(kind: Callable[..., Strategy]) -> Builder:
    def build(instances: Instances, scalarization: type[Scalarization], seeds: list[int]) -> Strategy:
        return kind(instances.num_tasks, scalarization=scalarization, seed=seeds, **instances.space)

    return build


_BUDGET = {"epsilon": paper.EPSILON, "oversampling": paper.OVERSAMPLING}
ALGORITHMS: dict[str, Builder] = {
    "MT-KB": _kernelized(MTKB),
    "MT-KB-ellipsoid": _kernelized(MTKB, bound="ellipsoid"),
    "MT-BKB": _kernelized(MTBKB, **_BUDGET),
    "IT-KB": _kernelized(ITKB),
    "IT-BKB": _kernelized(ITBKB, **_BUDGET),
    "MOBO": _kernelized(MOBO),
    "random": _plain(RandomSearch),
    "Sobol": _plain(SobolSearch),
    "MT-BKB-ellipsoid": _kernelized(MTBKB, bound="ellipsoid", **_BUDGET),
    "qLogNParEGO": _plain(NParEGO),
    "qLogNEHVI": _plain(NEHVI),
}
# The last ones only run when named: one more curve is one too many, and the outside references cost seconds a round.
DEFAULT_ALGORITHMS = tuple(ALGORITHMS)[:-3]
CERTIFIED = ("MT-KB", "MT-KB-ellipsoid", "MT-BKB", "MT-BKB-ellipsoid")


def named(what: str, wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """The known names meant by the wanted ones; capitals and dashes do not matter.

    Raises:
        ValueError: With the list and the nearest match, if a name is not known.
    """
    plain = {_plainly(name): name for name in known}
    names = []
    for name in wanted:
        if _plainly(name) not in plain:
            nearest = difflib.get_close_matches(_plainly(name), plain, n=1, cutoff=0.4)
            hint = f" Did you mean {plain[nearest[0]]}?" if nearest else ""
            raise ValueError(f"{what} should be among {', '.join(known)}, got {name}.{hint}")
        names.append(plain[_plainly(name)])
    return list(dict.fromkeys(names))


def _plainly(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
