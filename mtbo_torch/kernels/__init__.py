"""Multi-task kernels as GPyTorch kernels, and how they look to the regression."""

from mtbo_torch.kernels.multitask import (
    ICMKernel,
    IndependentKernel,
    MultiTaskKernel,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    default_kernel,
    describe_kernel,
    estimate_task_covar,
    num_tasks_of,
    require_takes,
    shared_parameter,
)

__all__ = [
    "ICMKernel",
    "IndependentKernel",
    "MultiTaskKernel",
    "SumOfSeparableKernel",
    "TaskSimilarityKernel",
    "default_kernel",
    "describe_kernel",
    "estimate_task_covar",
    "num_tasks_of",
    "require_takes",
    "shared_parameter",
]
