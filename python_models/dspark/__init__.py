"""DSpark speculative decoding for Triton: the library behind model_repository/. See docs/structure.md."""

__version__ = "0.1.0"
