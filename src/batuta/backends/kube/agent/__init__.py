"""The cluster's side of a node's agent: the pods of its node, and what it writes on them."""
