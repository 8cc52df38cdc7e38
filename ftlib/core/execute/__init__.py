"""Units: functions of the program that all members carry out, or none (``FTLib.execute``)."""
