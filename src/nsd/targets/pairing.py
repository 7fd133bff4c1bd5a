"""Do two models share one vocabulary? Asked token by token, before any work."""

from __future__ import annotations

from dataclasses import dataclass

from nsd.errors import PairMismatch
from nsd.targets.base import Target, Tokenizer


@dataclass(frozen=True, slots=True)
class Pairing:
    """What two vocabularies share: ids 0..shared-1 mean the same text; the others belong to one side."""

    shared: int
    target_only: int
    drafter_only: int

    @property
    def note(self) -> str:
        """One line for `nsd doctor`."""
        line = f"{self.shared} tokens shared"
        if self.target_only:
            line += f"; {self.target_only} of the target are never drafted"
        if self.drafter_only:
            line += f"; {self.drafter_only} of the drafter are cut off"
        return line


def check_pair(target: Target, drafter: Target) -> Pairing:
    """Compare the two vocabularies. Raises PairMismatch at the first id with two different texts.

    A vocabulary may end earlier than the other, and ids without an entry (padding of the head) do not count.
    """
    return compare(target.tokenizer, target.vocab, drafter.tokenizer, drafter.vocab, target.name, drafter.name)


def compare(
    target: Tokenizer, target_vocab: int, drafter: Tokenizer, drafter_vocab: int, target_name: str, drafter_name: str
) -> Pairing:
    """The comparison on tokenizers and widths of logits alone."""
    ours = _entries(target, target_vocab)
    theirs = ours if target is drafter and target_vocab == drafter_vocab else _entries(drafter, drafter_vocab)
    common = min(len(ours), len(theirs))
    for i in range(common):
        if ours[i] != theirs[i]:
            raise PairMismatch(
                f"token {i} is {_shown(ours[i])} for {target_name} and {_shown(theirs[i])} for {drafter_name}, "
                "wanted one tokenizer; take a drafter made for this target, or --drafter ngram, which needs none"
            )
    if not common:
        raise PairMismatch(f"{target_name} and {drafter_name} share no token; take --drafter ngram, which needs none")
    return Pairing(common, len(ours) - common, len(theirs) - common)


def _entries(tokenizer: Tokenizer, vocab: int) -> list[str | None]:
    """Vocabulary entries up to the last one that exists."""
    entries = [tokenizer.token_text(i) for i in range(vocab)]
    while entries and entries[-1] is None:
        entries.pop()
    return entries


def _shown(text: str | None) -> str:
    return "absent" if text is None else repr(text)
