"""A password that has to be quoted in a URL."""

SECRET = "pass/word@1:#?é"
QUOTED = "pass%2Fword%401%3A%23%3F%C3%A9"
