"""What a model's pass is given: packed rows, each sequence with one or more query tokens.

Made from a plan by `common.engine.runner`, once per pass; must not change while the pass runs.
"""

from dataclasses import dataclass

from torch import Tensor

from common.kernels.attention_rows import AttentionRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """The rows of a `PassPlan` (see there for shapes)."""

    tokens_T: Tensor
    rows: AttentionRows
