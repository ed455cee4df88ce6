"""What a virtual cluster is made of, and how bad its weather is."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Workers and their limits."""

    prefills: int = 1
    decodes: int = 1
    prefill_pages: int = 64
    decode_pages: int = 64
    page_tokens: int = 4
    chunk_tokens: int = 8
    budget_tokens: int = 32
    caching: bool = True
    max_num_seqs: int = 8
    max_waiting: int = 1000
    credit_tokens: int = 65_536
    lost_after_s: float = 10.0  # of silence

    @property
    def max_model_len(self) -> int:
        """A prompt may fill the smaller pool."""
        pages = [self.decode_pages, *([self.prefill_pages] if self.prefills else [])]
        return min(pages) * self.page_tokens


@dataclass(frozen=True, kw_only=True)
class Weather:
    """All zero: nothing goes wrong. Shares are of 1; `..._every_s` are means of random times."""

    drop: float = 0.0  # messages lost
    repeat: float = 0.0  # messages sent twice
    torn: float = 0.0  # pulls that fail
    slow: float = 0.0  # pulls that take up to a second
    raised: float = 0.0  # passes that raise
    cut_every_s: float = 0.0  # all messages between two processes are lost for a while
    cut_s: tuple[float, float] = (0.1, 2.0)
    pause_every_s: float = 0.0  # a process stands still for a while
    pause_s: tuple[float, float] = (0.1, 2.0)
    kill_every_s: float = 0.0  # a worker dies; another life starts soon after


FAIR = Weather()
