"""How much of a corpus may be lost on the way to shards, and what is said where it is more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from nanoset_core.errors import InputError
from nanoset_core.raw.rejects import MAX_UNREADABLE_FRACTION, OnReject, Reject, is_fault
from nanoset_core.storage.location import RawFolder
from nanoset_core.tokenization.losses import Losses

_LISTINGS_NAMED = 3


@dataclass(frozen=True, slots=True)
class SettingNames:
    """The settings by the names that the user knows, for messages."""

    on_reject: str = "--on-reject fail"
    rejected: str = "--max-rejected-fraction"
    unreadable: str = "--max-unreadable-fraction"
    text_key: str = "--json-key"


@dataclass(frozen=True, slots=True)
class RejectPolicy:
    """How many lines may be no documents, and how much of the text may lie in files that cannot be read to their end.

    The two are judged apart: a fault that ends a file is not one of the rejected lines.
    """

    on_reject: OnReject
    """`quarantine`: rejects are listed, up to the shares below; `fail`: the first one ends the work."""
    max_fraction: float
    """Share of the lines read that may be rejected, 0 to 1."""
    max_unreadable_fraction: float = MAX_UNREADABLE_FRACTION
    """Share of the stored bytes that may lie in files that cannot be read to their end, 0 to 1; 0: no such file."""
    text_key: str = "text"
    """Key of the text."""
    names: SettingNames = SettingNames()

    @property
    def fails(self) -> bool:
        """Whether the first reject ends the work."""
        return self.on_reject == "fail"

    def allows(self, losses: Losses) -> bool:
        """Tell whether no more is lost than is allowed."""
        return self._allows_files(losses) and self._allows_lines(losses)

    def check(self, losses: Losses, folder: RawFolder) -> None:
        """Refuse too large losses.

        Raises:
            InputError: More is lost than is allowed.
        """
        if (refusal := self.refusal(losses, folder)) is not None:
            raise refusal

    def refusal(self, losses: Losses, folder: RawFolder) -> InputError | None:
        """Return the error for more losses than are allowed; None where they are not. `folder` holds the files."""
        if not self._allows_files(losses):
            return self._unreadable(losses, folder)
        return None if self._allows_lines(losses) else self._rejected(losses, folder)

    def _allows_files(self, losses: Losses) -> bool:
        limit = 0.0 if self.fails else self.max_unreadable_fraction
        return losses.facts.faults == 0 or (limit > 0 and losses.unreadable_share <= limit)

    def _allows_lines(self, losses: Losses) -> bool:
        limit = 0.0 if self.fails else self.max_fraction
        return losses.facts.rejected <= limit * max(losses.facts.lines, 1)

    def _unreadable(self, losses: Losses, folder: RawFolder) -> InputError:
        files, names = losses.unreadable, self.names
        limit = names.on_reject if self.fails else f"{names.unreadable}: {self.max_unreadable_fraction:g}"
        enough = max(1, math.ceil(losses.unreadable_share * 1000)) / 1000
        mend = "fetch or write them again" if losses.facts.faults > 1 else "fetch or write it again"
        return InputError(
            "files cannot be read to their end" if losses.facts.faults > 1 else "a file cannot be read to its end",
            where=folder / files[0].path if files else folder,
            found=losses.unreadable_text() + (f"; {files[0].detail}" if files else ""),
            expected=f"whole files ({limit})",
            remedy=mend if self.fails else f"{mend}, or take what could be read of it: {names.unreadable} {enough:g}",
        )

    def _rejected(self, losses: Losses, folder: RawFolder) -> InputError:
        facts, names = losses.facts, self.names
        reason = max((name for name in facts.reasons if not is_fault(name)), key=lambda name: facts.reasons[name])
        first = losses.first(reason)
        reasons = ", ".join(f"{name} {count:,}" for name, count in facts.reasons.items())
        counts = f"{facts.rejected:,} of {facts.lines:,} lines rejected, {facts.rejected / max(facts.lines, 1):.2%}"
        limit = names.on_reject if self.fails else f"at most {self.max_fraction:.2%} rejected, {names.rejected}"
        return InputError(
            "too many lines are no documents",
            where=folder / first.file if first is not None else folder,
            found=f"{counts} ({reasons})" + ("" if first is None else f"; line {first.line:,} {_seen(first)}"),
            expected=f"{self._expected(reason)} ({limit})",
            remedy=self._remedy(reason, losses),
        )

    def _expected(self, reason: str) -> str:
        if reason == "missing_key":
            return f"the key {self.text_key!r} ({self.names.text_key}) in every line or row"
        return (
            f'one JSON object in each line, as {{"{self.text_key}": "Some text."}}, or a table with a text in each row'
        )

    def _remedy(self, reason: str, losses: Losses) -> str:
        listings = [str(listing.path()) for listing in islice(losses.listings, _LISTINGS_NAMED)]
        more = len(losses.listings) - len(listings)
        listed = ", ".join(listings) + (f" and {more:,} more" if more else "")
        first = f"name the key that holds the text ({self.names.text_key})" if reason == "missing_key" else "mend them"
        raised = "" if self.fails else f", or raise {self.names.rejected}"
        return f"{first}{raised}; each is listed in {listed}"


def _seen(reject: Reject) -> str:
    """Describe what is there in place of a document."""
    if reject.reason == "missing_key":
        keys, _, level = reject.detail.partition(" among [")[2].partition("]")
        return f"has {f'the keys {keys}' if keys else 'no keys'}{level}"
    return f"is {reject.excerpt!r} ({reject.reason}: {reject.detail})"
