"""The one port that protocols over HTTP share: pages for people, interfaces for scripts."""
