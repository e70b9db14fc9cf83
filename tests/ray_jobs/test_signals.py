import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ray_jobs.signals import Drain

ROOT = Path(__file__).resolve().parents[2]


def test_a_signal_requests_the_drain_and_the_handlers_come_back(capfd):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Drain() as drain:
        assert not drain.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert drain.requested
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert "interrupt again" in capfd.readouterr().err


@pytest.mark.parametrize("signals", [1, 2])
def test_a_reader_of_stderr_that_is_gone_disturbs_nothing(signals):
    """Ctrl-C ends the `tee` of a pipe as well."""
    code = (
        "import os, signal\nfrom ray_jobs.signals import Drain\nread, write = os.pipe()\nos.dup2(write, 2)\n"
        "os.close(read)\nos.close(write)\nwith Drain() as drain:\n"
        f"    for _ in range({signals}):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(drain.requested, flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == ((0, "True\n") if signals == 1 else (130, ""))
