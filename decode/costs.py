"""What it costs to take a sequence's pages: copying them to host memory and back, or computing
them again. Measured as it happens; numbers in, numbers out.
"""

LATENCY_S = 0.5e-3  # of one copy, before its first page and after its last
COPY_BYTES_PER_S = 4e9  # until one was measured
TOKENS_PER_S = 1e3  # until a pass was measured
_KEPT = 0.9  # weight of all earlier copies, beside the last one
_FADES = 0.999  # a pass; of the fastest of them


class Costs:
    """Seconds to copy a page and to compute a token of a prompt, from those that were lately."""

    def __init__(self, page_bytes: int) -> None:
        self._copy_s = page_bytes / COPY_BYTES_PER_S
        self._copied_pages = 1.0
        self._tokens_per_s = 0.0
        self._pass_s = 0.0  # the last one

    def copied(self, n_pages: int, seconds: float) -> None:
        """A spill, or its way back, took so long."""
        self._copy_s = _KEPT * self._copy_s + max(0.0, seconds - LATENCY_S)
        self._copied_pages = _KEPT * self._copied_pages + n_pages

    def computed(self, n_rows: int, seconds: float) -> None:
        """A pass of so many rows took so long. Small ones do not show what the device can."""
        rate = n_rows / seconds if seconds > 0 else 0.0
        self._pass_s = seconds
        self._tokens_per_s = max(rate, _FADES * self._tokens_per_s)

    def copy_s(self, n_pages: int) -> float:
        """One way."""
        return LATENCY_S + n_pages * self._copy_s / self._copied_pages

    def compute_s(self, n_tokens: int) -> float:
        return n_tokens / (self._tokens_per_s or TOKENS_PER_S)

    def copies_a_pass(self, n_pages: int) -> float:
        """One way, in passes such as the last one."""
        return self.copy_s(n_pages) / self._pass_s if self._pass_s > 0 else 1.0

    def spill_pays(self, n_pages: int, n_tokens: int) -> bool:
        """Whether copying the pages there and back takes less than computing the tokens again."""
        return 2 * self.copy_s(n_pages) < self.compute_s(n_tokens)

    def least_s(self, n_pages: int, n_tokens: int) -> float:
        """Of the two ways."""
        return min(2 * self.copy_s(n_pages), self.compute_s(n_tokens))
