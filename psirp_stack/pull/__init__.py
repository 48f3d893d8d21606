"""Asking for versions once: requests that go towards a node that has them, and are answered by the nearest that does.

Nodes with memory to spare keep versions that pass by (`cache`, `passing`) and answer for them (`holder`, `on_path`),
also when the publisher has gone. A node asks for its applications (`task`, `service`). All of it is a sans-I/O core.
"""
