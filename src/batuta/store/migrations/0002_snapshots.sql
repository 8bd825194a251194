-- The World after event `seq` (world_image.py), and which of the jobs that are over belong to it.
CREATE TABLE snapshots (
    seq        INTEGER PRIMARY KEY,
    first_past INTEGER NOT NULL,
    past_count INTEGER NOT NULL,
    digest     BLOB NOT NULL,
    image      BLOB NOT NULL
);

-- Jobs that are over, numbered in the order in which they ended. They never change, so snapshots share them.
-- A job can be there twice while a snapshot that is about to go and a new one do not share it.
CREATE TABLE past_jobs (
    number INTEGER PRIMARY KEY,
    job    TEXT NOT NULL,
    crc    INTEGER NOT NULL,
    body   TEXT NOT NULL
);
CREATE INDEX past_jobs_by_job ON past_jobs (job);
