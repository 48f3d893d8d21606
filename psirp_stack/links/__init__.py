"""Links: one small interface, three carriers (in process, raw Ethernet, UDP) and an impairment stage for all."""
