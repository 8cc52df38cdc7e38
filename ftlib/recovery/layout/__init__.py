"""What donors and joiners agree on: what travels, how it is cut, what requests and refusals say."""
