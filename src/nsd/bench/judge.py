"""Whether two mathematical answers mean the same, decided by math-verify in a process of its own.

An answer may be `9^{9^{9}}`: sympy then computes for hours inside one call that no exception can reach. So the
library runs in a worker that limits its own memory, and that the kernel ends with SIGALRM when one comparison takes
too long; the next question starts a new worker. One worker serves a whole run (sympy takes a second to load) and any
thread.

Source: huggingface/Math-Verify, parse and verify with its own time limits off.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from importlib import util

from nsd.errors import ConfigError

SECONDS = 10  # for one comparison; math-verify's own default is 5 for each of three steps
MEMORY = 2 << 30  # bytes

WORKER = """
import json, logging, resource, signal, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
logging.disable(logging.CRITICAL)
from math_verify import parse, verify
for line in sys.stdin:
    gold, answer = json.loads(line)
    signal.alarm({seconds})
    try:
        read = [parse("$" + text + "$", parsing_timeout=None, raise_on_error=False) for text in (gold, answer)]
        same = bool(read[0] and read[1] and verify(*read, timeout_seconds=None, raise_on_error=False))
    except MemoryError:
        break
    except Exception:
        same = False
    signal.alarm(0)
    print(json.dumps(same), flush=True)
"""


class Judge:
    """Answers `same(gold, answer)`; closes its worker on `close` or at the end of the program."""

    def __init__(self, seconds: int = SECONDS, memory: int = MEMORY) -> None:
        self._code = WORKER.format(seconds=seconds, memory=memory)
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None

    def same(self, gold: str, answer: str) -> bool | None:
        """Whether both mean the same; None if the comparison ran out of time or memory."""
        with self._lock:
            reply = self._ask(json.dumps([gold, answer]))
            if not reply:
                self._stop()
        return json.loads(reply) if reply else None

    def close(self) -> None:
        """End the worker; the next question starts another."""
        with self._lock:
            self._stop()

    def _ask(self, line: str) -> str:
        worker = self._worker or self._start()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
            return worker.stdout.readline()
        except BrokenPipeError:
            return ""

    def _start(self) -> subprocess.Popen[str]:
        require_math_verify()
        pipe = subprocess.PIPE
        self._worker = subprocess.Popen(
            [sys.executable, "-c", self._code], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8"
        )
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.communicate()


JUDGE = Judge()  # the one that tasks use
atexit.register(JUDGE.close)


def require_math_verify() -> None:
    """Refuse early where the library is missing, before an hour of decoding."""
    if util.find_spec("math_verify") is None:
        raise ConfigError(
            "got no math-verify, wanted it to compare mathematical answers; "
            "type: pip install 'nucleus-speculative-decoding[bench]'"
        )
