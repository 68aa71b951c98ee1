"""What a model's files say of themselves: the headers and texts that both the text side and the executor read."""

from services.model_file.errors import GgufError, ModelFileError
from services.model_file.header import Header, HeaderReader, Metadata, Value, read_header

__all__ = ["GgufError", "Header", "HeaderReader", "Metadata", "ModelFileError", "Value", "read_header"]
