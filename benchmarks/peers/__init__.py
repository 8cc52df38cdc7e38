"""Other systems for training on machines that fail, beside this one, on one job: see ``__main__``."""
