"""Answers made by hand: every figure that follows from them can be said by heart."""

from benchmarks.local.cells import Cell
from benchmarks.local.rows import rows_of
from benchmarks.local.samples import Sample, Score, Store

PROMPTS, LENGTH = 40, 100
LAP = [1000, 8000, 500, 500]
"""Microseconds of draft, target pass, decision and the rest: 10 ms a block, 5% of it decision."""


def fill(store: Store, cell: Cell, tau: int, block_ms: float, es: float = 0.0, prompts: int = PROMPTS) -> None:
    """Answers of 1 + 99 tokens in blocks of tau, each block taking block_ms, the prefill 10 ms."""
    blocks = (LENGTH - 1) // tau
    for index in range(prompts):
        laps = [[round(x * block_ms / 10) for x in LAP]] * blocks if cell.engine == "nsd" else []
        decode = blocks * block_ms / 1e3
        tested = 0 if cell.plain else 3 * blocks
        store.add(
            Sample(
                cell=cell.name,
                index=index,
                session=0,
                ids=[7 if i % 2 else index for i in range(LENGTH)],
                finish="length",
                seconds=decode + 0.01,
                decode_s=None if cell.engine == "transformers" else decode,
                laps=laps,
                committed=blocks * tau if laps else LENGTH - 1,
                tested=tested,
                rescued=tested // 3,
                evaluated=tested,
                sum_ES=es * tested,
                sum_eps=(es if cell.cap is None else min(es, cell.cap)) * tested,
                ES_is=None if cell.plain else "exact",
                tested_at=[] if cell.plain else [blocks] * 3,
                accepted_at=[] if cell.plain else [blocks, blocks // 2, 0],
            )
        )
        store.add(Score(cell.name, index, -2.0 * LENGTH - 10 * es * LENGTH, 1.5 * LENGTH))


def valid(store: Store, *cells: Cell):
    """Rows that all have to be valid."""
    rows, refused = rows_of(cells, store, 32, 3000)
    assert not refused
    return rows
