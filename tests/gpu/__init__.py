"""What only a GPU can show: jobs of two to four workers that have one together, rehearsed on the CPU where that can be done.

``python -m tests.gpu`` is ``make gpu``.
"""
