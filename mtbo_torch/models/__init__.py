"""BoTorch models around a regression."""

from mtbo_torch.models.base import MultiTaskGPModel
from mtbo_torch.models.exact import ExactMultiTaskGP
from mtbo_torch.models.nystrom import DEFAULT_OVERSAMPLING, NystromMultiTaskGP

__all__ = ["DEFAULT_OVERSAMPLING", "ExactMultiTaskGP", "MultiTaskGPModel", "NystromMultiTaskGP"]
