"""What can be wrong with a model's files. For the operator, at start: the text names the file and what is wrong."""


class ModelFileError(Exception):
    """The files hold no model that can be served."""


class GgufError(ModelFileError):
    """The file is no GGUF file that can be read."""
