"""The version, for people and for the rows of workers."""

__version__ = "0.1.0.dev0"
