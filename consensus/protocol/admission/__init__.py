"""Coming, going and meeting others: joiners, founders, rival sides."""
