"""The detokenizer: tokens into text, off to the side, and the one emitter of terminal events."""
