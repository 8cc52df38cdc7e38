"""All planted bugs of the protocol (those of flush and salvage are in ``test_planted_salvage.py``).

Mutations that no history shows, and why. Each was played in 392 histories: 30 seeds of eleven kinds of those here, two directed
ones, and 60 random ones with every fault (``draw``).

* *INSTALL below a promised ballot is taken.* What INSTALL tells is chosen, and a promise does not undo that; CHOSEN and
  FLUSH-REQUEST, which carry no ballot, make a member follow the same view. The rule is not needed where these are right.
* *A voter votes whichever view an ACCEPT names as the parent.* The second lock: it votes on the next epoch only, and only for
  members of its own view. (On the other side, at who counts votes, the parent's id is needed: ``no_parent_id``.)
* *A member installs a view with another report of its own than it gave.* The second lock: a driver takes reports from votes and
  FLUSH-REPLYs alone, which all carry the one stored report (``new_report_each_time``).
* *Newcomers are discounted though they are more than half of a view.* The second lock: no proposal lets in more than it keeps
  (``more_joiners_than_members`` breaks that one). Without both it forks (``newcomers_outvote``), with either it does not;
  ``tests/protocol/test_evidence.py`` shows it at once.
* *Who follows a view of which it hears that it can never be active stays in it.* The second lock: who acts elsewhere does not
  follow it, so it never acts (``follows_any_newer_view`` breaks that one); what is lost is that it stops at once.
* *A data plane makes a new report for each question of one epoch.* The second lock: ``FlushReports`` keeps the first report
  and asks no more (``new_report_each_time`` breaks that one, with a plane that never reports the same twice);
  ``tests/ftlib/plane/test_plane.py`` shows it at once.
* *A ping for an earlier lifetime is acked.* The second lock: an ack fits the ping's number and target. A liveness connection
  that closes and a request to join from the same address make the others check, and the check finds another lifetime.
* *A member acts on ACTIVATE though its own group is not built.* The second lock: its driver has counted its READY
  (``ready_of_a_majority`` breaks that one).
* *Who hears of a newer view does not pull it.* The second lock: whoever has it tells it on the laggard's next ping or ack.
  Without both laggards stay behind (``views_are_not_compared``).
* *Who hears that it is suspected does not refute it.* Where all ping all, an ack clears it as well. In larger views it is found
  (Exclusion and Trust speak), in histories of twelve members that are too slow to be played here.
* *Of the values that it is told, a proposer keeps the one with the lowest ballot.* Needed, but two different values accepted
  under two ballots and told to one proposer are too rare: ``tests/protocol/test_attempt.py`` shows it at once.
"""

from __future__ import annotations

from . import test_ballots, test_installs, test_leases, test_members, test_records
from .bug import Bug

BUGS: list[Bug] = [*test_ballots.BUGS, *test_leases.BUGS, *test_installs.BUGS, *test_members.BUGS, *test_records.BUGS]
