"""How decoding looks in a terminal: five token colours, a legend, the closing card; plain text in pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsd.events import Block, Origin

if TYPE_CHECKING:
    from nsd.compare import Comparison
    from nsd.decoding import Completion, Stats

STYLES = {
    Origin.RATIO: "green",
    Origin.RESCUED: "bold magenta",
    Origin.RECOVERED: "yellow",
    Origin.BONUS: "cyan",
    Origin.REJECTED: "red strike",
    Origin.TARGET: "",
}
MEANINGS = {
    Origin.RATIO: "accepted by ratio",
    Origin.RESCUED: "kept only by the nucleus",
    Origin.RECOVERED: "replacement",
    Origin.BONUS: "bonus",
    Origin.REJECTED: "rejected",
}


def legend() -> Text:
    """The five states in their colours."""
    parts = Text()
    for origin, meaning in MEANINGS.items():
        parts.append(meaning, STYLES[origin])
        parts.append("  ")
    return parts


def show_block(console: Console, block: Block) -> None:
    """One event as it comes: coloured on a terminal, with rejected proposals struck; plain text elsewhere."""
    if not console.is_terminal or console.no_color:
        console.out(block.text, end="", highlight=False)
        console.file.flush()
        return
    line = Text()
    for committed in block.committed:
        if committed.origin is Origin.RECOVERED and block.rejected_text:
            line.append(block.rejected_text.replace("\n", "⏎"), STYLES[Origin.REJECTED])
        line.append(committed.text, STYLES[committed.origin])
    console.print(line, end="", soft_wrap=True)


def card(completion: Completion) -> Table:
    """What one completion did and cost."""
    stats, rule = completion.stats, completion.request.rule
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("speed", f"{_number(stats.tokens_per_second, 1)} tokens/s, first token after {_ms(stats.ttft_s)}")
    table.add_row(
        "accepted length",
        f"tau {_number(stats.tau)}; {_number(stats.calls_per_token, 3)} target calls per token",
    )
    table.add_row(
        "drafted",
        f"{stats.drafted} drafted, {stats.tested} tested: {stats.by_ratio} by ratio, {stats.rescued} only by the set, "
        f"{stats.rejected} rejected",
    )
    table.add_row("cost", cost(stats))
    table.add_row("guarantee", _guarantee(completion))
    table.add_row(
        "settings",
        f"rule {rule.name} {_settings(rule.settings())} k {completion.request.k} seed {completion.request.seed}",
    )
    return table


def _guarantee(completion: Completion) -> str:
    guarantee = completion.fidelity.guarantee
    return f"none: {guarantee.reason}" if guarantee.value is None else f"{guarantee.value:.4g} ({guarantee.basis})"


def cost(stats: Stats) -> str:
    """Mean and max ES in words."""
    values = stats.as_json()
    if values["mean_ES"] is None:
        return "no position was tested"
    largest = "" if values["max_ES"] is None else f", max ES {values['max_ES']:.3f}"
    return f"mean ES {values['mean_ES']:.4f} ({values['mean_ES_kind']}){largest}"


def comparison_table(result: Comparison) -> Table:
    """The closing card of `nsd compare` and `nsd demo`."""
    ups, spans = result.speedups(), result.intervals()
    table = Table(title=None, box=None, padding=(0, 2, 0, 0))
    for heading in ("", "AR", "SD", "NSD"):
        table.add_column(heading, justify="left" if not heading else "right")
    stats = [result.arms[name].stats for name in ("ar", "sd", "nsd")]
    table.add_row("tokens/s", *(_number(s.tokens_per_second, 1) for s in stats))
    over = "AR" if result.baseline == "ar" else "transformers' AR"
    table.add_row(
        f"speed-up over {over}",
        "1.00x" if result.baseline == "ar" else "-",
        _times(ups["sd_over_ar"], spans["sd_over_ar"]),
        _times(ups["nsd_over_ar"], spans["nsd_over_ar"]),
    )
    table.add_row("speed-up over SD", "", "1.00x", _times(ups["nsd_over_sd"], spans["nsd_over_sd"]))
    table.add_row("mean accepted length tau", *(_number(s.tau) for s in stats))
    table.add_row("target calls per token", *(_number(s.calls_per_token, 3) for s in stats))
    table.add_row("time to first token", *(_ms(s.ttft_s) for s in stats))
    table.add_row("kept only by the nucleus", *(str(s.rescued) for s in stats))
    table.add_row("mean ES", *(_number(s.as_json()["mean_ES"], 4) for s in stats))
    table.add_row("max ES", *(_number(s.as_json()["max_ES"], 3) for s in stats))
    table.add_row("output tokens", *(str(s.output_tokens) for s in stats))
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"


def _times(ratio: float | None, span: tuple[float, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" + ("" if span is None else f" [{span[0]:.2f}, {span[1]:.2f}]")


def _settings(numbers: dict[str, object]) -> str:
    return " ".join(f"{name} {value}" for name, value in numbers.items() if value is not None)
