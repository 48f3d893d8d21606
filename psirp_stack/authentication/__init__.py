"""Who made this, and may they: Ed25519 keys, signatures on publications, packets and requests, and their checks."""
