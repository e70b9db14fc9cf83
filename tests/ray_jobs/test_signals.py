import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ray_jobs.signals import Drain

ROOT = Path(__file__).resolve().parents[2]


def test_a_signal_requests_the_drain_and_the_handlers_come_back(capfd):
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    with Drain() as drain:
        assert not drain.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert drain.requested
    assert [signal.getsignal(number) for number in numbers] == before
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


def test_a_terminal_that_closes_drains(tmp_path):
    """Nothing that is printed afterwards fails, and a second hang-up, as shells send it, stops nothing at once."""
    code = (
        "import os, signal, sys, time\nfrom ray_jobs.signals import Drain\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # these tests may run under nohup themselves
        "with Drain() as drain:\n    print('ready', flush=True)\n    end = time.monotonic() + 30\n"
        "    while not drain.requested and time.monotonic() < end:\n        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        f"    open({str(tmp_path / 'told')!r}, 'w').write(str(drain.requested))\n"
        "print('the end', flush=True)\nprint('the end', file=sys.stderr, flush=True)\n"
    )
    main, end = pty.openpty()
    command = ["setsid", "--ctty", "--wait", sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, stdin=end, stdout=end, stderr=end)
    os.close(end)
    said = b""
    while not said.endswith(b"\n"):  # all of it: a terminal that closes within a write fails it
        said += os.read(main, 7)
    os.close(main)
    assert process.wait(60) == 0 and (tmp_path / "told").read_text() == "True"


def test_nohup_is_respected():
    code = (
        "import os, signal\nfrom ray_jobs.signals import Drain\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with Drain() as drain:\n    os.kill(os.getpid(), signal.SIGHUP)\n    print(drain.requested)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, "False\n")
