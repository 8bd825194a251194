-- Who may write to a journal on a server, and how many transactions there were: one row (postgres_writer.py).
-- A journal in a file is guarded by locks of the file system and leaves this as it is.
CREATE TABLE writer (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    term    INTEGER NOT NULL,
    commits INTEGER NOT NULL
);
INSERT INTO writer (id, term, commits) VALUES (1, 0, 0);
