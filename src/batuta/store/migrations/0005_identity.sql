-- Which journal this is, made at random once: folders of jobs carry it (identity.py). Events from the number
-- `checked_from` on have a checksum; those before were written by versions that had none.
CREATE TABLE identity (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    journal      TEXT NOT NULL,
    checked_from INTEGER NOT NULL
);
INSERT INTO identity (id, journal, checked_from)
SELECT 1, lower(hex(randomblob(16))), coalesce(max(seq), 0) + 1 FROM events;

-- CRC-32 of a row (journal.py, records.py): SQLite itself notices damage to the structure of a file, not to a text in it.
ALTER TABLE events ADD COLUMN crc INTEGER;
ALTER TABLE tasks ADD COLUMN crc INTEGER;
