"""The entry point that vLLM calls in every process: front end, engine core, each worker.

What acts. Loading the plugin only puts the hooks in place. A draft's test changes for a request that asks for it
(nsd_theta, nsd_rule, nsd_max_deviation in `SamplingParams.extra_args` or `vllm_xargs`), or for every request if the
server's environment asks (NSD_RULE, NSD_THETA, NSD_MAX_DEVIATION; `nsd vllm serve` sets them). A step in which no
request asks goes through vLLM's own functions with the very arguments that they were given.

What stops. vLLM logs a plugin that cannot be imported and goes on without it, so no process may trust its own silence:

- This module imports nothing but the standard library, so it loads wherever the package is found, and `register` may
  raise: vLLM lets an error of the function itself end the process.
- An unknown vLLM version, a missing symbol or an incompatible rejection_sample_method ends the process if the
  environment asks for NSD. If it does not, they are logged as an error, and requests that ask get HTTP 400 with the
  reason.
- The front end asks every worker by RPC, before it serves, whether its hooks are in place. A worker without the plugin
  cannot answer. The server then ends (environment asks) or refuses requests that ask.
- A worker ends if the environment asks and a request arrives without the stamp that an admitting front end leaves.

Not covered from inside: no process at all can import the package (a folder named nsd beside the server, VLLM_PLUGINS
without nsd). `nsd vllm serve` looks for both before it starts vLLM. Otherwise look for "nsd active" in the log.
"""

from __future__ import annotations

import logging
import os

_ASKS = ("NSD_RULE", "NSD_THETA", "NSD_MAX_DEVIATION")


def register() -> None:
    """Put the hooks in place; may be called any number of times in a process."""
    try:
        from nsd.engines.vllm.install import install

        install()
    except Exception as problem:
        if any(os.environ.get(name, "").strip() for name in _ASKS):
            raise
        logging.getLogger("vllm.nsd").error("nsd is off, nothing is relaxed: %s; see nsd vllm check", problem)
