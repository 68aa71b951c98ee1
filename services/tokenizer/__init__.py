"""Text <-> token ids, and chat templates. Pure: knows no link and no service."""

from services.tokenizer.chat import ChatTemplate, Message
from services.tokenizer.errors import TemplateError, TextError, TokenizerFileError
from services.tokenizer.tokenizer import Tokenizer, load

__all__ = ["ChatTemplate", "Message", "TemplateError", "TextError", "Tokenizer", "TokenizerFileError", "load"]
