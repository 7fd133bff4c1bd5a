"""`nsd doctor`: is this installation, and this pair, in order?"""

from __future__ import annotations

import typer

from nsd.cli import options as o
from nsd.cli.console import emit_json, out


def doctor(
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    k: o.K = None,
    dtype: o.Dtype = "auto",
    engine: o.Engine = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    json_output: o.Json = False,
) -> None:
    """Check installation and pair, say what to fix, and estimate the break-even; exit code 1 if something is wrong."""
    from nsd.doctor import examine

    places = (o.folder_or_name(model), o.folder_or_name(drafter))
    checks = examine(*places, k, dtype=dtype, engine=engine, device=device, threads=threads)
    well = all(check.ok for check in checks)
    if json_output:
        rows = [{"name": c.name, "ok": c.ok, "seen": c.seen, "fix": c.fix} for c in checks]
        emit_json("doctor", {"ok": well, "checks": rows})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            out.print("ok  " if check.ok else "fix ", style="green" if check.ok else "red", end="")
            out.print(f"{check.name:<{width}}  {check.seen}{f' -> {check.fix}' if check.fix else ''}", markup=False)
    if not well:
        raise typer.Exit(1)
