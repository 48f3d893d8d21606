"""A forwarding node in a process of its own, for the tests over real sockets."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from psirp_stack.forwarding_model import Tags

ROOT = Path(__file__).parents[2]


def hex_tags(tags: Tags) -> list[str]:
    return [f"{tag:x}" for tag in tags]


class NodeProcess:
    """Starts `psirp_stack.forwarding_node` and talks to it; ends it by its id when the block is left."""

    def __init__(
        self, configuration: dict[str, Any], *, prefix: Sequence[str] = (), pass_fds: Sequence[int] = ()
    ) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "psirp_stack.forwarding_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            pass_fds=pass_fds,
        )
        self._say(configuration)

    def __enter__(self) -> "NodeProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def wait_ready(self) -> None:
        assert self.hear() == {"ready": True}

    def originate(self, frame: bytes) -> None:
        self._say({"originate": frame.hex()})

    def delivered(self) -> bytes:
        """The next frame that this node delivers; waits for it."""
        return bytes.fromhex(self.hear()["delivered"])

    def finish(self) -> dict[str, Any]:
        """End the node's input and return the counters it says goodbye with."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        said = self.hear()
        assert self._process.wait(timeout=20) == 0
        return said

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node ended without saying why; its error is on stderr"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait(timeout=20)

    def say_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _say(self, said: dict[str, Any]) -> None:
        self.say_line(json.dumps(said))
