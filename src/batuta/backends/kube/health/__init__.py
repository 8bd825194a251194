"""The health of nodes on a cluster: what agents note, what the book makes of it, what nodes carry for it."""
