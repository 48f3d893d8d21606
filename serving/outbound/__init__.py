"""Requests to servers of other people: callbacks and topics. Guarded, bounded, never following redirects."""
