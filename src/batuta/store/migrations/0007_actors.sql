-- Which user caused an event; NULL: none did, or a version wrote it that did not say so.
ALTER TABLE events ADD COLUMN actor TEXT;
CREATE INDEX events_by_actor ON events (seq) WHERE actor IS NOT NULL;
