"""What has to survive: the journal, snapshots of the World, and the few tables beside it, in SQLite."""
