"""In-packet Bloom filters (LIPSIN): link-id tags, choosing and splitting filters."""
