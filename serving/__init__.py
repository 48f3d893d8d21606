"""HTTP in both directions: listening, TLS, limits, the guarded outbound client. Knows no protocol above HTTP."""
