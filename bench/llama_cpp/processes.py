"""Child processes that end with this one, and lines that say what goes on."""
import os
import signal
import subprocess
import sys
import time


class Failure(Exception):
    """A failure that the user is told in one line."""


def run(command, what, output=subprocess.PIPE, **more):
    """Returns the standard output. The child gets its own process group, so that all of it can be ended."""
    command = [str(c) for c in command]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                                 start_new_session=True, **more)
    except OSError as error:
        raise Failure(f"{what}: {command[0]}: {error.strerror}") from None
    try:
        out, errors = child.communicate()
    except BaseException:
        end(child)
        raise
    if child.returncode != 0:
        lines = ((out or b"") + b"\n" + errors).decode(errors="replace").strip().splitlines()
        raise Failure(f"{what} ended with status {child.returncode}: {lines[-1] if lines else 'it said nothing'}")
    return out


def end(child):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.communicate(timeout=5)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            pass


class Progress:
    """One line that is overwritten on a terminal; elsewhere a line for each step."""

    def __init__(self):
        self.terminal = sys.stderr.isatty()
        self.shown = 0.0

    def step(self, text):
        print(("\r\033[K" if self.terminal else "") + text, end="" if self.terminal else "\n", file=sys.stderr,
              flush=True)

    def share(self, what, done):
        """The share of one step that is done. Only a terminal shows it, and not too often."""
        if self.terminal and time.monotonic() > self.shown + 0.2:
            self.shown = time.monotonic()
            self.step(f"{what}: {100 * done:.0f}%")

    def clear(self):
        if self.terminal:
            self.step("")
