"""What a model's pass is given: packed rows, each sequence with one or more query tokens.

Made from a plan by `common.engine.runner`, once per pass; must not change while the pass runs.
"""

from dataclasses import dataclass

from torch import Tensor

from common.kernels.attention_plan import QueryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """The rows of a `PassPlan` (see there for shapes), and which keys each attends to."""

    tokens_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    groups: tuple[QueryGroup, ...]
