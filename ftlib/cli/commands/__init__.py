"""The command line of each command; what it does is in the rooms and modules beside this one, imported when it is used."""
