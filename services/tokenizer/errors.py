"""What can go wrong on the way between text and token ids.

TokenizerFileError is for the operator, at start: this model file cannot be served, and why.
TextError (and TemplateError, a kind of it) is for the client: this text cannot become tokens; the message may be shown.
"""


class TokenizerFileError(Exception):
    """The model file holds no tokenizer that this package can build."""


class TextError(ValueError):
    """A text of a client has no tokens of its own, such as a lone surrogate."""


class TemplateError(TextError):
    """The model has no chat template, or its template refuses these messages."""
