"""Where a command keeps what it has to keep when nobody says where: the XDG state directory."""

import os
from pathlib import Path


def state_folder(name: str) -> Path:
    """`$XDG_STATE_HOME/psph/NAME`, or below `~/.local/state`. Raises `OSError` when there is no home either."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "psph" / name
    try:
        return Path.home() / ".local" / "state" / "psph" / name
    except RuntimeError:
        raise OSError("there is no home directory to keep data in: say where with --data") from None


def listening_host() -> str:
    """Where a hub listens when nobody says it: in a container everywhere, because only its ports lead in."""
    return os.environ.get("PSPH_HOST") or "127.0.0.1"


def at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
