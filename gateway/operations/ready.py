"""Servers that go to the background and say when they are ready, so that the next line of a script finds them there.

`psph hub --wait-ready` runs `psph hub` in a session of its own and returns once that serves. The two talk through a
pipe whose number is in the environment: a byte says «ready», its end says that there will be none.
"""

import os
import subprocess
import sys

OPTION = "--wait-ready"
HELP = "go to the background, and return once it serves"
VARIABLE = "PSPH_READY_FD"


def tell_ready() -> None:
    """For whoever waits; without anybody it does nothing."""
    number = os.environ.pop(VARIABLE, None)
    if number is not None and number.isdigit():
        os.write(int(number), b"1")
        os.close(int(number))


def run_in_background() -> int:
    """This very command without the option, as a process that outlives this one. Returns the exit code for this one."""
    reading, writing = os.pipe()
    words = [sys.executable, *(word for word in sys.orig_argv[1:] if word != OPTION)]
    process = subprocess.Popen(  # noqa: S603 - what the user typed
        words,
        env={**os.environ, VARIABLE: str(writing)},
        pass_fds=[writing],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C at the shell is not meant for it
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        is_ready = pipe.read(1) == b"1"
    if not is_ready:
        return process.wait()
    print(f"it goes on in the background: kill {process.pid} stops it", flush=True)  # noqa: T201 - a command's output
    process.returncode = 0  # it is not waited for
    return 0
