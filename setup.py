"""Everything is declared in setup.cfg; this file serves tools that still ask for it."""

from setuptools import setup

setup()
