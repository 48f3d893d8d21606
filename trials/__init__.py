"""For development: crash runs, fuzzers and the small worlds they run in. Imports all packages; none imports it."""
