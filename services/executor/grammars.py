"""The constraints that the scheduler has had prepared, by number, and a few more that nobody uses at the moment.

Called from several threads: constraints are prepared by one, released by another and looked up by a third. A grammar
is held from its Prepared to its Release, so that no slot ever waits for a compilation; then it stays, by what it says,
among the cache_size last used ones, which makes the next Prepare of the same constraint free.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from services.executor.grammar import Grammar, GrammarError
from services.wire.messages import Constraint, Prepare, Prepared


class Grammars:
    """compile: raises GrammarError; None where a constraint is judged and never matched."""

    def __init__(self, compile: Callable[[Constraint], Grammar | None], cache_size: int) -> None:
        self._compile = compile
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._held: dict[int, tuple[Constraint, Grammar | None]] = {}
        self._idle: OrderedDict[Constraint, Grammar | None] = OrderedDict()  # least recently used first

    def prepare(self, message: Prepare) -> Prepared:
        """Compile, unless it is there already; the answer."""
        number, constraint = message.number, message.constraint
        try:
            with self._lock:
                is_idle = constraint in self._idle
                grammar = self._idle.pop(constraint, None)
            if not is_idle:
                grammar = self._compile(constraint)
        except GrammarError as error:
            return Prepared(number, str(error) or "it does not compile")
        with self._lock:
            self._held[number] = (constraint, grammar)
        return Prepared(number)

    def release(self, number: int) -> None:
        """No slot will ask for it any more; texts that follow it go on. It must be prepared."""
        with self._lock:
            constraint, grammar = self._held.pop(number)
            if grammar is not None and grammar.is_worn:
                return
            self._idle[constraint] = grammar
            if len(self._idle) > self._cache_size:
                self._idle.popitem(last=False)

    def get(self, number: int) -> Grammar | None:
        """The grammar held under a number; None if there is none."""
        with self._lock:
            held = self._held.get(number)
        return held and held[1]
