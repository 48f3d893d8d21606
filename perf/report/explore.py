"""The page to look around in: one HTML file with its data and a script inside, and nothing from elsewhere.

Whatever came from traces is data to the script, which sets it as text: it is never read as markup.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from perf.pipeline.analysis import Analysis

TEMPLATE: Final = Path(__file__).with_name("explore.html")
PLACE: Final = "@DATA@"


def render_explorer(analysis: Analysis) -> str:
    data = {
        "runs": [run.run for run in analysis.inventory.runs],
        "places": [asdict(row) for row in analysis.places],
        "slowest": [asdict(row) for row in analysis.slowest],
        "queue_depth": [asdict(row) for row in analysis.queue_depth],
    }
    # In a script element only `<` can end what is data, or begin a comment.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, text)
