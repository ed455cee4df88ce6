"""What an operation costs in time, as a function of its size (the form of DistServe's simulator,
arXiv 2401.09670): passes by their rows and contexts, transfers by their bytes.
"""

from dataclasses import dataclass

import numpy as np

from common.engine.plan import PassPlan


@dataclass(frozen=True, kw_only=True)
class PrefillCosts:
    """Seconds of a pass over prompts: `fixed + per_token * sum(len) + per_pair * sum(pairs)`.

    A pair is one token that attends to one: a prompt of n tokens computed whole has n * n / 2, so
    that `per_pair` is twice the coefficient of a sum of squares.
    """

    fixed_s: float
    per_token_s: float
    per_pair_s: float

    def seconds(self, n_tokens: float, n_pairs: float) -> float:
        return self.fixed_s + self.per_token_s * n_tokens + self.per_pair_s * n_pairs


@dataclass(frozen=True, kw_only=True)
class DecodeCosts:
    """Seconds of a step: `fixed + per_context_token * sum(context) + per_sequence * batch`."""

    fixed_s: float
    per_context_token_s: float
    per_sequence_s: float

    def seconds(self, n_context: float, n_sequences: float) -> float:
        return (
            self.fixed_s + self.per_context_token_s * n_context + self.per_sequence_s * n_sequences
        )


@dataclass(frozen=True, kw_only=True)
class TransferCosts:
    """Seconds of a pull: `latency + bytes / bandwidth`."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, n_bytes: float) -> float:
        return self.latency_s + n_bytes / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of one kind of device and link. `page_bytes`: what a page costs to move.

    `overlaps`: a mixed pass reads its weights while it computes prompts, as kernels do whose rows
    all go through one product (a roofline); else it pays for both, one after the other.
    """

    prefill: PrefillCosts
    decode: DecodeCosts
    transfer: TransferCosts
    page_bytes: int
    overlaps: bool = False

    def pass_s(self, plan: PassPlan) -> float:
        """Of a pass that may be mixed: sequences with one row decode, the others are prompts.

        The fixed part of a pass (its weights are read once) is paid once: the larger of the two,
        or what its prompts take, where that is longer and they overlap.
        """
        if plan.n_rows == len(plan.len_B):
            return self.decode.seconds(int(plan.len_B.sum(dtype=np.int64)), plan.n_rows)
        n_rows_B = np.diff(plan.start_B1).astype(np.int64)
        len_B = plan.len_B.astype(np.int64)
        decodes_B = n_rows_B == 1
        n_decodes = int(decodes_B.sum())
        rows_B, ends_B = n_rows_B[~decodes_B], len_B[~decodes_B]
        # Row i of a prompt's attends to itself and all before it: an arithmetic series.
        pairs_B = rows_B * ends_B - rows_B * (rows_B - 1) // 2
        parts: list[tuple[float, float]] = []  # (fixed, whole)
        if n_decodes:
            whole = self.decode.seconds(int(len_B[decodes_B].sum()), n_decodes)
            parts.append((self.decode.fixed_s, whole))
        if len(rows_B):
            whole = self.prefill.seconds(int(rows_B.sum()), int(pairs_B.sum()))
            parts.append((self.prefill.fixed_s, whole))
        if self.overlaps and len(parts) == 2:
            (step_fixed, step), (_, prompts) = parts
            return max(step_fixed, prompts) + step - step_fixed
        fixed = max((fixed for fixed, _ in parts), default=0.0)
        return fixed + sum(whole - own for own, whole in parts)

    def pull_s(self, n_pages: int) -> float:
        return self.transfer.seconds(n_pages * self.page_bytes)
