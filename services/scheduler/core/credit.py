"""Credit: how far behind each gateway's reader is, and which gateways are too far.

A gateway with more than max_unread uncredited TokenBatches is silent: its sequences are not planned until it catches
up. Credits are cumulative, so a late or repeated one changes nothing.
"""


class Credits:
    """Numbers are those of TokenBatches; a gateway starts level with the last batch sent before it was first seen."""

    def __init__(self, max_unread: int) -> None:
        self._max_unread = max_unread
        self._credited: dict[str, int] = {}
        self._silent: dict[str, None] = {}

    def know(self, gateway: str, last_number: int) -> None:
        """Note a gateway; one already known stays as it is."""
        self._credited.setdefault(gateway, last_number)

    def credit(self, gateway: str, number: int) -> None:
        self._credited[gateway] = max(number, self._credited.get(gateway, 0))

    def refresh(self, last_number: int) -> bool:
        """Judge every gateway against the last batch sent; True when one fell silent or came back."""
        silent = {
            gateway: None for gateway, credited in self._credited.items() if last_number - credited > self._max_unread
        }
        has_changed = silent != self._silent
        self._silent = silent
        return has_changed

    @property
    def is_any_silent(self) -> bool:
        return bool(self._silent)

    def is_silent(self, gateway: str) -> bool:
        return gateway in self._silent
