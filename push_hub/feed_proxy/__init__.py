"""Feeds of others under this hub's address, with this hub in their links: how any reader comes to use its own hub."""
