"""Constraints as the proofs have them: rules under which a token depends on every output before it.

A matcher that starts from another history than the acknowledged outputs, misses a token or takes one in twice changes a
token, as surely as a wrong block does. A rule may end a text, leave it at a dead end, or not compile at all.
"""

from collections.abc import Sequence

import msgspec

from services.executor.batch import I64, StepBatch
from services.executor.capacity import Capacity
from services.executor.cells import Drawn
from services.executor.hash_cells import HashCells, simulated_token
from services.executor.slots import read_column
from services.wire.messages import Constraint, ConstraintKind, SlotInit

EOS = 1  # of the card; plain rows never draw it
VOCAB = 64
FIRST = 32  # the lowest token that a rule lets be drawn


class Rule(msgspec.Struct, frozen=True):
    """shift: moves every token. complete: outputs after which the text ends. dead: outputs after which no token may
    follow; the text ends first where both are the same."""

    shift: int
    complete: int | None = None
    dead: int | None = None
    compiles: bool = True

    def constraint(self) -> Constraint:
        """The rule as it travels."""
        return Constraint(ConstraintKind.REGEX, msgspec.json.encode(self).decode())

    def token(self, drawn: int, outputs: Sequence[int]) -> int | None:
        """What becomes of a token drawn after these outputs."""
        if len(outputs) == self.complete:
            return EOS
        if len(outputs) == self.dead:
            return None
        return FIRST + (drawn + self.shift + sum(outputs)) % (VOCAB - FIRST)


def rule_of(constraint: Constraint) -> Rule:
    """The rule that a constraint stands for."""
    return msgspec.json.decode(constraint.source, type=Rule)


def ruled_outputs(rule: Rule, prompt: Sequence[int], seed: int, count: int) -> list[int]:
    """What a request gets alone, up to its end or its dead end; nothing where the rule does not compile."""
    outputs: list[int] = []
    while rule.compiles and len(outputs) < count:
        token = rule.token(simulated_token([*prompt, *outputs], seed, VOCAB), outputs)
        if token is None:
            break
        outputs.append(token)
        if token == EOS:
            break
    return outputs


class RuledCells(HashCells):
    """Cells whose masked rows draw by the rule of their slot. rules: those that are prepared, by number."""

    def __init__(self, capacity: Capacity, rules: dict[int, Rule]) -> None:
        super().__init__(capacity)
        self._rules = rules
        self._texts: dict[int, tuple[Rule, list[int]]] = {}  # of the slots that have a constraint

    def init_slot(self, op: SlotInit) -> None:
        """A generation's text begins with the outputs that it is told of."""
        super().init_slot(op)
        self._texts.pop(op.slot, None)
        if op.constraint:
            outputs = read_column(op.known_tokens).tolist()[op.num_prompt_tokens :]
            # Released since the slot was planned: then nobody wants its tokens any more.
            self._texts[op.slot] = self._rules.get(op.constraint, Rule(0, dead=len(outputs))), outputs

    def advance(self, batch: StepBatch, tokens: I64) -> Drawn:
        """As plain rows; then what a rule makes of the masked ones."""
        drawn = super().advance(batch, tokens)
        masked = set(batch.masked_rows.tolist())
        for index, row in enumerate(batch.sampling_rows.tolist()):
            text = self._texts.get(int(batch.slots[row]))
            assert (row in masked) == (text is not None), "masks do not follow the constraint of the slot"
            if text is not None:
                rule, outputs = text
                token = rule.token(int(drawn.tokens[index]), outputs)
                drawn.tokens[index], drawn.stuck[index] = token or 0, token is None
                outputs.append(token or 0)
        return drawn
