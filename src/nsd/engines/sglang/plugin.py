"""The entry point that SGLang calls in every process (group `sglang.srt.plugins`). Kernel-tested only.

What acts. Nothing, unless the server's environment names NSD: NSD_RULE (nsd or sd), NSD_THETA, NSD_MAX_DEVIATION are
the default of every request, and with any of them set (NSD_RULE=sd for an exact default) a request may ask by
`custom_params` in its sampling parameters: nsd_rule, nsd_theta, nsd_max_deviation. Bad values are refused where SGLang
checks the request's other parameters.

How. SGLang hands its verification kernels the uniforms ("coins"). A draft that lies in the nucleus gets the coin 0,
which the kernel's own test accepts; coins of all other drafts, and the one of the final token, are left as they are.
Only chains (topk = 1; NGRAM drafts trees): in a tree a coin of 0 would always take the first sibling.

What stops. SGLang logs a plugin that raises an error and goes on without it, so what does not fit here leaves by
SystemExit, which it does not catch: another version than the one tested, a missing symbol or argument. In the middle
of serving, a tree of drafts, block verification, or a kernel whose hook is not in place raises an error, which ends the
scheduler: NSD never falls back to the exact test in silence. The line "nsd active" in the log says that hooks are
registered. Outside of `eagle_sample` (DFLASH, DSPARK, UNO) requests cannot be told apart: the server's default holds.
"""

from __future__ import annotations

import logging
import os

_ASKS = ("NSD_RULE", "NSD_THETA", "NSD_MAX_DEVIATION")
log = logging.getLogger("sglang.nsd")


def register() -> None:
    """Register the hooks if the environment asks; leaves the process where they cannot work."""
    if not any(os.environ.get(name, "").strip() for name in _ASKS):
        log.debug("nsd is installed and not asked for; set NSD_THETA to turn it on")
        return
    try:
        from nsd.engines.sglang.hooks import install

        default = install()
    except Exception as problem:
        message = f"nsd: asked for and cannot be given: {problem}; unset NSD_RULE, NSD_THETA and NSD_MAX_DEVIATION"
        log.error(message)
        raise SystemExit(message) from problem
    log.warning("nsd active (kernel-tested only, never run in a whole engine): default %s", default)
