"""A generation strategy for Ax: Sobol points, then :class:`LogAverageImprovement` on :class:`ExactMultiTaskGP`."""

from __future__ import annotations

from typing import Any

from mtbo_torch import ax_inputs as ax_inputs  # registers the acquisition functions with BoTorch
from mtbo_torch.acquisition import NystromScalarizedMultiTaskUCB, ScalarizedMultiTaskUCB
from mtbo_torch.checks import require_count, require_seed
from mtbo_torch.improvement import LogAverageImprovement
from mtbo_torch.models import ExactMultiTaskGP, NystromMultiTaskGP

try:
    from ax.adapter.registry import Generators
    from ax.generation_strategy.generation_node import GenerationStep
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
    from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
    from ax.generators.torch.botorch_modular.utils import ModelConfig
    from ax.generators.utils import mk_discrete_choices
    from ax.storage.botorch_modular_registry import register_acquisition, register_acquisition_function, register_model
except ImportError:
    raise ImportError('The generation strategy needs Ax. Run: pip install "mtbo-torch[ax]"') from None

SEARCH: dict[str, Any] = {"num_restarts": 5, "raw_samples": 256}
# Between limits, BoTorch draws samples by a random walk: 32 steps for each sample, after 10,000 unless told otherwise.
LIMITED_SEARCH: dict[str, Any] = {"raw_samples": 128, "options": {"n_burnin": 256}}


class LimitedAcquisition(Acquisition):
    """Search as Ax does, but with short random walks to the starts where parameters have limits between them."""

    def optimize(self, *args: Any, **arguments: Any) -> Any:
        """Return candidates, their values and weights; see Ax."""
        digest, fixed = arguments["search_space_digest"], arguments.get("fixed_features")
        if arguments.get("inequality_constraints") or arguments.get("equality_constraints"):
            choices = mk_discrete_choices(ssd=digest, fixed_features=fixed)
            # The other optimizers refuse these options.
            if determine_optimizer(digest, self.acqf, choices) in ("optimize_acqf", "optimize_acqf_mixed"):
                arguments["optimizer_options"] = (arguments.get("optimizer_options") or {}) | LIMITED_SEARCH
        return super().optimize(*args, **arguments)


# So that Ax can save experiments that use them, and load them again.
register_acquisition(LimitedAcquisition)
for _model in (ExactMultiTaskGP, NystromMultiTaskGP):
    register_model(_model)
for _acquisition in (LogAverageImprovement, ScalarizedMultiTaskUCB, NystromScalarizedMultiTaskUCB):
    register_acquisition_function(_acquisition)


def make_generation_strategy(num_initial: int = 5, seed: int | None = None, **options: Any) -> GenerationStrategy:
    """Return a generation strategy: some Sobol trials, then those that promise the largest gain in hypervolume.

    Importing this module also registers our models and acquisition functions with Ax, so that experiments can be saved
    and loaded: import it before ``load_from_json_file``.

    Args:
        num_initial: The number of Sobol trials, of which all have to be completed before the model takes over.
        seed: Of the Sobol trials; random by default.
        options: Those of :class:`LogAverageImprovement` that are not of the experiment: `scalarization`, as
            ``"hypervolume"`` or ``"chebyshev"``, and `weights`. Ax saves words and numbers, not classes.

    Example:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> from mtbo_torch.ax import make_generation_strategy
        >>> client = Client()
        >>> client.configure_experiment([RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))])
        >>> client.configure_optimization(objective="-cost, quality")
        >>> client.set_generation_strategy(make_generation_strategy(num_initial=3, seed=0))
        >>> len(client.get_next_trials(max_trials=2))
        2
    """
    require_count("num_initial", num_initial, "Pass the number of Sobol trials.")
    if seed is not None:
        require_seed("seed", seed)
    surrogate = SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=ExactMultiTaskGP)])
    ours = {
        "surrogate_spec": surrogate,
        "acquisition_class": LimitedAcquisition,
        "botorch_acqf_class": LogAverageImprovement,
        "botorch_acqf_options": options,
        # Where a metric is missing in one trial, the model of a fold has other parameters than that of all data.
        "refit_on_cv": True,
        "warm_start_refit": False,
    }
    first = GenerationStep(Generators.SOBOL, num_trials=num_initial, generator_kwargs={"seed": seed})
    search = {"model_gen_options": {"optimizer_kwargs": SEARCH}}
    then = GenerationStep(Generators.BOTORCH_MODULAR, num_trials=-1, generator_kwargs=ours, generator_gen_kwargs=search)
    return GenerationStrategy(name="MultiTask", nodes=[first, then])
