"""An edge list as a file."""

from pathlib import Path

from psirp_stack.graph import EdgeListError, Graph, parse_edges

MAX_EDGE_FILE_BYTES = 64 * 1024 * 1024


def read_edges(path: Path) -> Graph:
    """Read an edge list file; every problem is an `EdgeListError` that names the file."""
    try:
        if path.stat().st_size > MAX_EDGE_FILE_BYTES:
            raise EdgeListError(str(path), 1, f"the file is larger than {MAX_EDGE_FILE_BYTES} bytes")
        return parse_edges(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise EdgeListError(str(path), 1, f"the file is not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise EdgeListError(str(path), 1, f"the file cannot be read ({error.strerror})") from None
