"""Protocols behind the control function. Adding one touches nothing outside its own module."""
