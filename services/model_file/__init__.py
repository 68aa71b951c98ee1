"""What a model file says of itself: the header that both the text side and the executor read."""

from services.model_file.header import GgufError, Header, HeaderReader, Metadata, Value, read_header

__all__ = ["GgufError", "Header", "HeaderReader", "Metadata", "Value", "read_header"]
