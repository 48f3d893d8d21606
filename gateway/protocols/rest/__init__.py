"""Topics by GET and POST on the web port: for curl, for scripts, for browsers."""
