"""The ranked merges of a BPE model, from a GGUF file's list or from SentencePiece scores.

Must know nothing of pre-tokenizers or special tokens.
"""

from collections.abc import Mapping, Sequence

from common.errors import UnsupportedModel

Merge = tuple[str, str]


def listed_merges(lines: Sequence[object], ids: Mapping[str, int]) -> list[Merge]:
    """Merges as GGUF lists them, "left right", best first. Of equal ones the first counts."""
    merges: dict[Merge, None] = {}
    for line in map(str, lines):
        at = line.find(" ", 1)  # a token may itself begin with a space
        left, right = line[:at], line[at + 1 :]
        if at < 0 or not {left, right, left + right} <= ids.keys():
            raise UnsupportedModel(f"GGUF metadata: merge {line!r} is not of known tokens")
        merges[left, right] = None
    return list(merges)


def merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[Merge]:
    """Merges that do what SentencePiece does: join the pair whose token scores highest.

    Among pairs that make the same token, SentencePiece joins the leftmost in the text. Ranks
    cannot say that, but it only matters within a run of one repeated pattern, where leftmost
    joining leaves the longer piece on the left: so longer left parts rank first.
    """
    if len(scores) != len(tokens):
        raise UnsupportedModel(f"GGUF metadata: {len(tokens)} tokens, {len(scores)} scores")
    known = frozenset(tokens)
    ranked = sorted(
        (-score, n, -cut)
        for n, (token, score) in enumerate(zip(tokens, scores, strict=True))
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    )
    return [(tokens[n][:-cut], tokens[n][-cut:]) for _, n, cut in ranked]
