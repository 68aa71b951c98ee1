"""What crosses a process: messages, their codec, the links that carry them, and the table of who speaks to whom."""
