"""What is measured. A cell is a target format, a rule, K, a temperature and a way of drafting; or somebody else's loop.

Cells come in an order of priority, so that a machine that is quiet for ten minutes measures what the goals need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from nsd.errors import ConfigError

Engine = Literal["nsd", "transformers", "llama.cpp"]
THETA = 0.95
SAME, GREEDY = "same", "greedy"
DTYPES = ("int8", "bfloat16", "int4", "w8a8")
TEMPERATURES = (1.0, 0.7)
GOAL_K = 3
"""The K whose tau the goals name."""
SHARPER = ("0.8", "0.6")
"""Draft temperatures of the sharper arms, as parts of the target's."""
CAPS = (0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one setting.

    rule "ar" drafts nothing (k 0). draft: "same" (q at the target's temperature), "greedy" (point masses), or a number
    as text that the target's temperature is multiplied with. cap: largest one-step deviation, None without. threads:
    those of llama.cpp; all other arms have those of the run.
    """

    dtype: str
    rule: str
    k: int
    temperature: float
    draft: str = SAME
    cap: float | None = None
    engine: Engine = "nsd"
    threads: int | None = None

    @property
    def name(self) -> str:
        """What identifies it, in files too."""
        if self.engine == "llama.cpp":
            return f"llama.cpp {self.dtype} {self.threads} threads T={self.temperature:g}"
        if self.engine == "transformers":
            return f"transformers {self.dtype} T={self.temperature:g}"
        drafting = "" if self.draft == SAME else " greedy drafts" if self.draft == GREEDY else f" draft T x{self.draft}"
        capped = "" if self.cap is None else f" cap {self.cap:g}"
        return f"{self.dtype} {self.rule}{f' K={self.k}' if self.k else ''} T={self.temperature:g}{drafting}{capped}"

    @property
    def plain(self) -> bool:
        """Whether it decodes token by token."""
        return self.k == 0

    @property
    def headline(self) -> bool:
        """Whether it drafts by the target's own temperature and spends without a cap: what the goals speak of."""
        return self.draft == SAME and self.cap is None

    def partner(self) -> Cell | None:
        """Standard speculation on the same drafts, whose tau has to stand beside this one's."""
        return None if self.rule != "nsd" else replace(self, rule="sd", cap=None)

    def baseline(self) -> Cell:
        """Plain decoding of the same weights in the same loop: for somebody else's loop, the bfloat16 one."""
        return ar(self.dtype if self.engine == "nsd" else "bfloat16", self.temperature)


def ar(dtype: str, temperature: float) -> Cell:
    """Plain decoding in this project's loop."""
    return Cell(dtype, "ar", 0, temperature)


def sd(dtype: str, k: int, temperature: float, draft: str = SAME) -> Cell:
    """Standard speculation."""
    return Cell(dtype, "sd", k, temperature, draft)


def nsd(dtype: str, k: int, temperature: float, draft: str = SAME, cap: float | None = None) -> Cell:
    """Nucleus speculation."""
    return Cell(dtype, "nsd", k, temperature, draft, cap)


def transformers(temperature: float) -> Cell:
    """transformers' generate."""
    return Cell("bfloat16", "ar", 0, temperature, engine="transformers")


def llama(threads: int, temperature: float) -> Cell:
    """llama.cpp on the file that the weights come from."""
    return Cell("Q4_1", "ar", 0, temperature, engine="llama.cpp", threads=threads)


def goal_cells(dtypes: Iterable[str], temperatures: Iterable[float]) -> list[Cell]:
    """What the goals need first, then what makes their best K surer."""
    first: list[Cell] = []
    later: list[Cell] = []
    for t in temperatures:
        first += [ar("int8", t), sd("int8", 3, t), nsd("int8", 3, t), transformers(t)]
        first += [ar("bfloat16", t), sd("bfloat16", 4, t), nsd("bfloat16", 4, t)]
        first += [llama(1, t), ar("int4", t), sd("int4", 3, t), nsd("int4", 3, t)]
        later += [sd("int8", 2, t), sd("bfloat16", 3, t), nsd("bfloat16", 3, t), llama(2, t), sd("int4", 2, t)]
        first += [ar("w8a8", t), sd("w8a8", 4, t), nsd("w8a8", 4, t)]
        later += [sd("bfloat16", 5, t), nsd("bfloat16", 5, t), sd("w8a8", 3, t), nsd("w8a8", 3, t)]
    return _only(first + later, dtypes)


def k_cells(dtypes: Iterable[str], temperatures: Iterable[float], ks: Iterable[int] = range(1, 7)) -> list[Cell]:
    """Both rules at every K, with plain decoding: what the default K is chosen by."""
    found = []
    for t in temperatures:
        for dtype in dtypes:
            found += [ar(dtype, t), *(rule(dtype, k, t) for k in ks for rule in (sd, nsd))]
    return found


def curve_cells(dtypes: Iterable[str], temperatures: Iterable[float], k: int = GOAL_K) -> list[Cell]:
    """Sharper drafting, greedy drafts and the cap, each with its own standard speculation, beside plain NSD."""
    found = []
    for dtype in dtypes:
        for t in temperatures:
            found += [ar(dtype, t), sd(dtype, k, t), nsd(dtype, k, t)]
            for draft in (*SHARPER, GREEDY):
                found += [sd(dtype, k, t, draft), nsd(dtype, k, t, draft)]
            found += [nsd(dtype, k, t, SAME, cap) for cap in CAPS]
    return found


def chosen(sets: Iterable[str], dtypes: Iterable[str], temperatures: Iterable[float], ks: Iterable[int]) -> list[Cell]:
    """Cells of the named sets ("goals", "k", "curve", "all"), in order of priority, each once.

    Raises ConfigError for an unknown set.
    """
    dtypes, temperatures, ks = tuple(dtypes), tuple(temperatures), tuple(ks)
    found: list[Cell] = []
    for name in sets:
        if name not in ("goals", "k", "curve", "all"):
            raise ConfigError(f"got cells '{name}', wanted goals, k, curve or all; try --cells goals")
        if name in ("goals", "all"):
            found += goal_cells(dtypes, temperatures)
        if name in ("k", "all"):
            found += k_cells(dtypes, temperatures, ks)
        if name in ("curve", "all"):
            found += curve_cells([dtype for dtype in ("int8",) if dtype in dtypes] or dtypes[:1], temperatures)
    return list(dict.fromkeys(found))


def fitting(cells: Iterable[Cell], seconds: dict[Cell, float], budget: float) -> list[Cell]:
    """The cells that fit into a budget of seconds, by priority; NSD comes with its partner and the baseline or not."""
    taken: list[Cell] = []
    for cell in cells:
        bundle = [c for c in with_company([cell]) if c not in taken]
        needed = sum(seconds.get(c, 0.0) for c in bundle)
        if needed <= budget:
            taken += bundle
            budget -= needed
    return taken


def with_company(cells: Iterable[Cell]) -> list[Cell]:
    """Cells with the plain decoding and the standard speculation that their rows need, each once."""
    found = [c for cell in cells for c in (cell.baseline(), cell.partner(), cell) if c is not None]
    return list(dict.fromkeys(found))


def _only(cells: Iterable[Cell], dtypes: Iterable[str]) -> list[Cell]:
    """Cells of these formats; somebody else's loop always."""
    wanted = set(dtypes)
    return [cell for cell in cells if cell.engine != "nsd" or cell.dtype in wanted]
