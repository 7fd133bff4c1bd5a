"""How a run was made, and what a reader must know before quoting its numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nsd.bench.document import Table
from nsd.bench.results import Model
from nsd.bench.texts import NONE


def provenance(m: Model) -> Table:
    """What a manifest says, as a table."""
    manifest, config = m.runs[0].manifest, m.config
    engine, session = config["engine"], manifest["sessions"][-1]
    hardware = session.get("hardware", {})
    gpus = ", ".join(hardware.get("gpus") or ["no GPU"])
    settings = {**config["settings"], "max_new_tokens": {t: o["max_new_tokens"] for t, o in config["tasks"].items()}}
    facts = {
        "runs": ", ".join(f"{r.name}{'' if r.complete else ' (partial)'}" for r in m.runs),
        "engine, dtype, device": f"{engine.get('engine')}, {engine.get('dtype')}, {engine.get('device')}",
        "drafting mode, law of q": f"{engine.get('drafting_mode')}, {engine.get('draft_law')}",
        "gate, mask id": f"{engine.get('gate')}, {'none' if engine.get('mask_id') is None else engine['mask_id']}",
        "K counts": engine.get("k_unit"),
        "SD baseline": ", ".join({"sd": "p/q"}.get(name, name) for name in config["sd_baseline"]) or NONE,
        "nucleus ties": ", ".join(config["tie_variant"]) or NONE,
        "tasks": _words({name: _origin(told) for name, told in config.get("origins", {}).items()}) or NONE,
        "settings": _words(settings),
        "seeds": ", ".join(map(str, sorted({s for r in m.runs for s in r.manifest["config"]["seeds"]}))),
        "order": f"{config['order']}, prompt by prompt; warm-up of {config['warm_up_tokens']} tokens not counted",
        "speed": f"{config['speed']['headline']}; {config['speed']['statistic']}",
        "hardware": f"{hardware.get('cpu')}, {hardware.get('threads')} threads; {gpus}",
        "load before": _loads(m),
        "sandbox": _sandbox(session),
        "versions": _words(session.get("versions", {})),
        "revision": session.get("revision") or "not in a repository",
        "command": " ".join(session.get("command", [])),
        "target's weights": _words(engine.get("target_hash", {})),
        "drafter's weights": _words(engine.get("drafter_hash", {})),
        "traces": "recorded; their evidence is part of the decision times"
        if config.get("request", {}).get("trace")
        else "not recorded",
        "begun, finished": f"{manifest['created']}, {manifest.get('finished', 'not finished')}",
    }
    return Table(m.title, ["", ""], [[name, str(value)] for name, value in facts.items()])


def _sessions(m: Model) -> list[dict[str, Any]]:
    return [session for run in m.runs for session in run.manifest["sessions"]]


def _loads(m: Model) -> str:
    found = [session.get("hardware", {}) for session in _sessions(m)]
    known = [f"{h['load']:g} on {h['cores']} cores" for h in found if h.get("load") is not None]
    return ", ".join(dict.fromkeys(known)) or "not recorded"


def busy(m: Model) -> bool:
    """Whether a session began on a machine that had not enough idle cores for it; its times are then of no use."""
    machines = [session.get("hardware", {}) for session in _sessions(m)]
    known = [h for h in machines if h.get("load") is not None and h.get("cores") and h.get("threads")]
    return any(h["load"] + h["threads"] > h["cores"] + 0.5 for h in known if not h.get("gpus"))


def _origin(told: dict[str, Any]) -> str:
    """Data of a task in a few words."""
    return " ".join(str(told[key])[:40] for key in ("file", "data", "revision", "sha256") if key in told)


def _sandbox(session: dict[str, Any]) -> str:
    """What programs of answers were kept from."""
    told = session.get("sandbox")
    if told is None:
        return "no programs were run"
    words = {
        "network": "network",
        "pids": "other processes",
        "files": "writing outside",
        "own_user": "the user's files",
    }
    kept = [word for name, word in words.items() if told.get(name)]
    missing = [word for name, word in words.items() if not told.get(name)]
    return f"no {', '.join(kept) or 'isolation'}" + (f"; not kept from: {', '.join(missing)}" if missing else "")


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_words(v) if isinstance(v, dict) else str(v)[:40]}" for name, v in values.items())


def _machine(session: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in session.get("hardware", {}).items() if name != "load"}


def warnings(models: Sequence[Model]) -> list[str]:
    """What a reader must know before quoting a number."""
    found = []
    for m in models:
        if not all(run.complete for run in m.runs):
            found.append(f"{m.title}: a run is partial; its numbers will change.")
        if len({seed for r in m.runs for seed in r.manifest["config"]["seeds"]}) > 1:
            found.append(
                f"{m.title}: McNemar's p counts the answers of one prompt under several seeds as independent, so it is "
                "too small where they are alike; the intervals resample whole prompts and are not."
            )
        if m.left_out:
            found.append(f"{m.title}: {m.left_out} prompts that not all arms have answered are left out.")
        if busy(m):
            found.append(
                f"{m.title}: other work ran on the machine when a session began ({_loads(m)}), so its times and "
                "speed-ups are noise; τ, acceptance, ES and scores do not depend on it."
            )
        machines = {json.dumps([_machine(s), s.get("versions")]) for s in _sessions(m)}
        if len(machines) > 1:
            found.append(
                f"{m.title}: its sessions ran on different machines or versions, so times are not of one kind."
            )
    return found
