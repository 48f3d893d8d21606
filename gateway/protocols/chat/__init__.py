"""People talking to each other, on a page and over JSON."""
