"""What runs inside a runner: one process per replica. Standard library only, nothing else of Batuta."""
