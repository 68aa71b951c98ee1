"""Text <-> token ids, and chat templates. Pure: knows no link and no service."""
