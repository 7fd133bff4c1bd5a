"""How decoding looks in a terminal: five token colours, a legend, the closing card; plain text in pipes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsd.cli.console import write
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


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def legend() -> Text:
    """The five states in their colours."""
    parts = Text()
    for origin, meaning in MEANINGS.items():
        parts.append(meaning, STYLES[origin])
        parts.append("  ")
    return parts


def coloured(console: Console) -> bool:
    """Whether colours reach a reader: a terminal that has them and was not asked to leave them out."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def _harmless(text: str) -> str:
    """Text without control characters, which a model must not send to a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def show_block(console: Console, block: Block) -> None:
    """One event as it comes: coloured on a terminal, with rejected proposals struck; plain text elsewhere."""
    if not coloured(console):
        write(_harmless(block.text) if console.is_terminal else block.text, console)
        return
    line = Text()
    for committed in block.committed:
        if committed.origin is Origin.RECOVERED and block.rejected_text:
            line.append(_harmless(block.rejected_text).replace("\n", "⏎"), STYLES[Origin.REJECTED])
        line.append(_harmless(committed.text), STYLES[committed.origin])
    console.print(line, end="", soft_wrap=True)


def card(completion: Completion, law: str | None = None) -> Table:
    """What one completion did and cost; law is that of its drafts."""
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
    table.add_row("cost", cost(stats, law))
    table.add_row("guarantee", _guarantee(completion))
    table.add_row(
        "settings",
        f"rule {rule.name} {_settings(rule.settings())} k {completion.request.k} seed {completion.request.seed}",
    )
    return table


def _guarantee(completion: Completion) -> str:
    guarantee = completion.fidelity.guarantee
    return f"none: {guarantee.reason}" if guarantee.value is None else f"{guarantee.value:.4g} ({guarantee.basis})"


def cost(stats: Stats, law: str | None = None) -> str:
    """What was spent, in words: mean and max ES, and how much of it a cap or a budget allowed."""
    values = stats.as_json()
    if values["mean_ES"] is None:
        return values["reasons"]["mean_ES"]  # type: ignore[no-any-return]  # a reason is text
    largest = "" if values["max_ES"] is None else f", max {values['max_ES']:.3f}"
    words = f"mean ES {values['mean_ES']:.4f}{largest} ({values['mean_ES_kind']})"
    if values["mean_eps"] is not None and values["mean_eps"] < values["mean_ES"]:
        words = f"mean deviation {values['mean_eps']:.4f}, max {values['max_eps']:.3f}; without the cap {words}"
    return words + ("; drafts are point masses: a token kept by the nucleus costs 1 - p" if law == "point" else "")


def comparison_table(result: Comparison) -> Table:
    """The closing card of `nsd compare` and `nsd demo`."""
    ups, spans = result.speedups(), result.intervals()
    arms = {name: result.arms[name].stats() for name in ("ar", "sd", "nsd")}
    relaxed = result.arms["nsd"].completions[0].request.rule.name.upper()
    table = Table(title=None, box=None, padding=(0, 2, 0, 0))
    for heading in ("", "AR", "SD", relaxed):
        table.add_column(heading, justify="left" if not heading else "right")
    stats = list(arms.values())
    values = [s.as_json() for s in stats]
    table.add_row("tokens/s", *(_number(s.tokens_per_second, 1) for s in stats))
    over = "AR" if result.baseline == "ar" else "transformers' AR"
    ours = (
        "1.00x" if result.baseline == "ar" else _times(ups["ar_over_transformers"], spans.get("ar_over_transformers"))
    )
    versus_ar = (ours, *(_times(ups[name], spans.get(name)) for name in ("sd_over_ar", "nsd_over_ar")))
    table.add_row(f"speed-up over {over}", *versus_ar)
    table.add_row("speed-up over SD", "", "1.00x", _times(ups["nsd_over_sd"], spans.get("nsd_over_sd")))
    table.add_row("mean accepted length tau", *(_number(s.tau) for s in stats))
    table.add_row("target calls per token", *(_number(s.calls_per_token, 3) for s in stats))
    table.add_row("time to first token", *(_ms(s.ttft_s) for s in stats))
    table.add_row("kept only by the nucleus", *(str(s.rescued) for s in stats))
    table.add_row("mean ES", *(_number(v["mean_ES"], 4) for v in values))
    table.add_row("max ES", *(_number(v["max_ES"], 3) for v in values))
    if any(v["mean_eps"] != v["mean_ES"] and v["mean_eps"] is not None for v in values):
        table.add_row("mean deviation spent", *(_number(v["mean_eps"], 4) for v in values))
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
