"""Stop strings in a growing text: the one that completes first ends it; of those completing together, the longest.

The answer depends on the text alone, not on how it was cut into tokens. Held back is only what might still become a
stop string: the longest tail of the text that is a proper prefix of one. Knows nothing of tokens.

An Aho-Corasick automaton: its state is that longest tail. It grows a level (prefixes one character longer) only when
the text reaches it, so stop strings that are never approached cost next to nothing, however many and long they are;
each character costs a constant number of steps, amortised.
"""

from collections.abc import Sequence

_CHARACTER_BITS = 21  # a code point is below 2**21
_ROOT = 0


class StopMatcher:
    """One text against its stop strings. `matched`: the stop string that ended it; nothing may be fed after that."""

    __slots__ = ("_automaton", "_firsts", "_held", "_include_stop", "_state", "matched")

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """stops: at least one, none empty. include_stop: the text ends after the stop string instead of before it."""
        self._automaton = _Automaton(stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._include_stop = include_stop
        self._held = ""
        self._state = _ROOT
        self.matched: str | None = None

    def feed(self, text: str, may_stop: bool = True) -> str:
        """The text that is certain now. may_stop false: stop strings that complete in this text do not count."""
        assert self.matched is None, "text after its end"
        if self._state == _ROOT and self._firsts.isdisjoint(text):
            return text
        automaton, state = self._automaton, self._state
        for position, character in enumerate(text):
            state = automaton.step(state, ord(character))
            stop = automaton.ends[state]
            if stop is None:
                continue
            if may_stop:
                return self._end(stop, text[: position + 1])
            state = automaton.prefix(state)
        self._state = state
        return self._release(self._held + text, automaton.depths[state])

    def flush(self) -> str:
        """What was held back, when the text ends for another reason; nothing may be fed after that."""
        return self._release(self._held, 0)

    def _release(self, text: str, num_held: int) -> str:
        border = len(text) - num_held
        self._held = text[border:]
        return text[:border]

    def _end(self, stop: str, text: str) -> str:
        self.matched = stop
        whole = self._held + text
        self._held = ""
        return whole if self._include_stop else whole[: len(whole) - len(stop)]


class _Automaton:
    """Nodes are the prefixes of the stop strings; every list has one entry a node."""

    __slots__ = ("_goes_on", "_next", "_num_levels", "_reached", "_shorter", "_stops", "depths", "ends")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._reached = [_ROOT] * len(stops)  # the deepest node made of each stop string
        self._num_levels = 0
        self._next: dict[int, int] = {}  # node << bits | code point -> node
        self._shorter = [_ROOT]  # the longest other node that is a tail of this one
        self._goes_on = [True]  # whether this is a proper prefix of a stop string
        self.depths = [0]
        self.ends: list[str | None] = [None]  # the longest stop string that ends here

    def step(self, state: int, code: int) -> int:
        """The longest tail that is a prefix, after one more character."""
        if self.depths[state] == self._num_levels:
            self._grow()
        return self._follow(state, code)

    def prefix(self, state: int) -> int:
        """The longest tail that is a proper prefix: the state itself, unless it is a whole stop string and no more."""
        while not self._goes_on[state]:
            state = self._shorter[state]
        return state

    def _follow(self, state: int, code: int) -> int:
        while True:
            node = self._next.get(state << _CHARACTER_BITS | code)
            if node is not None:
                return node
            if state == _ROOT:
                return _ROOT
            state = self._shorter[state]

    def _grow(self) -> None:
        """Make every prefix one character longer than the longest there are; all shorter ones are complete."""
        self._num_levels += 1
        for order, stop in enumerate(self._stops):
            if len(stop) < self._num_levels:
                continue
            parent, code = self._reached[order], ord(stop[self._num_levels - 1])
            node = self._next.get(parent << _CHARACTER_BITS | code)
            if node is None:
                node = self._add(parent, code)
            if len(stop) == self._num_levels:
                self.ends[node] = stop
            else:
                self._goes_on[node] = True
            self._reached[order] = node

    def _add(self, parent: int, code: int) -> int:
        shorter = _ROOT if parent == _ROOT else self._follow(self._shorter[parent], code)
        node = len(self.depths)
        self._next[parent << _CHARACTER_BITS | code] = node
        self._shorter.append(shorter)
        self._goes_on.append(False)
        self.depths.append(self._num_levels)
        self.ends.append(self.ends[shorter])
        return node
