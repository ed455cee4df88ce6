"""Pages with content: what a page holds is a digest of every token up to there, so that a read of
a page that is not what it should be changes every token that follows."""

from collections.abc import Sequence

from common.engine.events import Launch, Pull, Spill
from common.engine.plan import Drawn, PassPlan, PassResult, filled
from common.ids import PageId
from common.kv.pages import PagePool
from common.messages import PageRef

N_TOKENS = 40
END = 0  # the end token
SPOILT = -1  # written by a pass that raised, or by a pull that failed
Content = list[int | None]


def chain(tokens: Sequence[int], before: int = 7) -> list[int]:
    """The KV of each token: a function of it and of all before it."""
    digests: list[int] = []
    for token in tokens:
        before = hash((before, token))
        digests.append(before)
    return digests


def draw(digest: int, sample: int, index: int) -> int:
    """The model: the next token after what `digest` stands for."""
    return hash((digest, sample, index)) % N_TOKENS


def answer(prompt: Sequence[int], sample: int, max_tokens: int) -> list[int]:
    """What must reach the client."""
    outputs: list[int] = []
    digest = chain(prompt)[-1]
    while len(outputs) < max_tokens and (not outputs or outputs[-1] != END):
        outputs.append(draw(digest, sample, len(outputs)))
        digest = chain(outputs[-1:], digest)[-1]
    return outputs


class Memory:
    """The pool's pages, written when a pass or a pull is final: as late as a fence allows."""

    def __init__(self, pool: PagePool, page_tokens: int) -> None:
        self._pool = pool
        self._page_tokens = page_tokens
        self._pages: list[Content] = [[None] * page_tokens for _ in range(pool.n_pages)]
        self._lives: dict[object, dict[PageId, int]] = {}
        self._writes: dict[tuple[int, int], int] = {}  # of the running pass: (page, at) -> KV
        self._digests: list[int] = []  # of its rows
        self._drawn: tuple[Drawn, ...] = ()  # by the last pass, if it did not raise

    def launch(self, launch: Launch) -> None:
        """From here on nobody else may be given a page of it."""
        plan = launch.plan
        touched = {page for copy in plan.copies for page in copy}
        for table, length in zip(plan.tables_BM.tolist(), plan.len_B.tolist(), strict=True):
            last = length + plan.repeats - 1
            touched.update(map(PageId, table[: -(-last // self._page_tokens)]))
        self._live(launch.step, touched)

    def can_begin(self, launch: Launch) -> bool:
        """The pass before has drawn what this one reads."""
        return self._drawn != () or not len(launch.plan.unread_rows_U)

    def begin(self, launch: Launch) -> None:
        """Copies first; then every read is made, and every draw is checked against its tokens."""
        plan = filled(launch.plan, self._drawn)
        for source, target in plan.copies:
            self._pages[target] = list(self._pages[source])
        self._writes = {}
        self._digests = []
        for b in range(len(plan.len_B)):
            rows = range(int(plan.start_B1[b]), int(plan.start_B1[b + 1]))
            table = [int(page) for page in plan.tables_BM[b]]
            length = int(plan.len_B[b])
            start = length - len(rows)
            read = [self._at(table, position) for position in range(start)]
            assert None not in read
            known = [digest for digest in read if digest is not None]
            new = chain(plan.tokens_T[rows].tolist(), *known[-1:])
            assert plan.positions_T[rows].tolist() == list(range(start, length))
            for position, row, digest in zip(range(start, length), rows, new, strict=True):
                page, at = table[position // self._page_tokens], position % self._page_tokens
                assert int(plan.slots_T[row]) == page * self._page_tokens + at
                assert (page, at) not in self._writes
                self._writes[page, at] = digest
            self._digests += new
            if SPOILT not in known:  # else the pass before has raised: what is drawn is not used
                self._check_draws(plan, rows, [*known, *new])

    def _at(self, table: list[int], position: int) -> int | None:
        return self._pages[table[position // self._page_tokens]][position % self._page_tokens]

    @staticmethod
    def _check_draws(plan: PassPlan, rows: range, digests: list[int]) -> None:
        for drawing in plan.draws:
            if drawing.row in rows:
                assert drawing.row == rows[-1]
                outputs = drawing.outputs
                if len(outputs) < drawing.index:  # it was not known as this was planned
                    outputs = (*outputs, int(plan.tokens_T[drawing.row]))
                assert drawing.index == len(outputs)
                assert digests == chain((*drawing.prompt, *outputs))

    def done(self, launch: Launch, n_rounds: int = 1) -> PassResult:
        """`n_rounds`: how often it was computed."""
        self._still_live(launch.step)
        for (page, at), digest in self._writes.items():
            self._pages[page][at] = digest
        drawn = [draw(self._digests[d.row], d.sample, d.index) for d in launch.plan.draws]
        self._drawn = tuple(Drawn(token=token) for token in drawn)
        rounds = [self._drawn]
        while len(rounds) < n_rounds:
            rounds.append(self._again(launch.plan, len(rounds), rounds[-1]))
        return PassResult(drawn=self._drawn, again=tuple(rounds[1:]))

    def _again(self, plan: PassPlan, n: int, drawn: Sequence[Drawn]) -> tuple[Drawn, ...]:
        """The n-th repetition: each row for what it has drawn last, a position further."""
        assert n < plan.repeats
        assert [d.row for d in plan.draws] == list(range(plan.n_rows))
        tokens: list[Drawn] = []
        for d, last in zip(plan.draws, drawn, strict=True):
            (self._digests[d.row],) = chain([last.token], self._digests[d.row])
            position = int(plan.len_B[d.row]) + n - 1
            page = int(plan.tables_BM[d.row, position // self._page_tokens])
            self._pages[page][position % self._page_tokens] = self._digests[d.row]
            tokens.append(Drawn(token=draw(self._digests[d.row], d.sample, d.index + n)))
        return tuple(tokens)

    def failed(self, launch: Launch) -> None:
        self._still_live(launch.step)
        self._drawn = ()
        for page, at in self._writes:
            self._pages[page][at] = SPOILT

    def pull(self, pull: Pull | Spill) -> None:
        self._live(("pull", pull.ticket), {page for _, page in pull.copies})

    def pulled(self, pull: Pull | Spill, content: Sequence[Content | None]) -> None:
        """None: it could not be read; something was written all the same."""
        self._still_live(("pull", pull.ticket))
        for (_, page), page_content in zip(pull.copies, content, strict=True):
            self._pages[page] = list(page_content or [SPOILT] * self._page_tokens)

    def content(self, ref: PageRef) -> Content | None:
        """For a reader; None: the page has another life than the one that was announced."""
        if self._pool.generation(ref.page) != ref.generation:
            return None
        return self._pages[ref.page]

    def _live(self, who: object, pages: set[PageId]) -> None:
        self._lives[who] = {page: self._pool.generation(page) for page in pages}

    def _still_live(self, who: object) -> None:
        """Nobody else was given a page that was still read or written."""
        for page, generation in self._lives.pop(who).items():
            assert self._pool.generation(page) == generation
