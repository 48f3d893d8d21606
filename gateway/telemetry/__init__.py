"""What the gateway tells about itself: metrics, logs, recent events, and the way of the last publications.

Everything here listens to the same observer events; no package that does the work knows of it.
"""
