"""The information-centric network: what enters here goes there, and what is wanted here is brought from there."""
