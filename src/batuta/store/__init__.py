"""What has to survive: the journal, snapshots of the World, tables beside it; in SQLite or PostgreSQL."""
