"""The caller's side of a launch: who decides (``ledger``: pure), who carries it out (``director``), one agent each (``link``),
what becomes of the workers' lines (``pump``).
"""
