"""Everything that a launch decides: ``Ledger``, its hosts, its roster and its founding. Pure: no process, clock or stream."""
