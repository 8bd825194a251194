-- Every event, in order. `body` is JSON (codec.py); `job` is the one job that the event is about.
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    time_s REAL,
    job    TEXT,
    body   TEXT NOT NULL
);
CREATE INDEX events_by_job ON events (job) WHERE job IS NOT NULL;

-- The jobs to which a plan does something.
CREATE TABLE plan_jobs (
    seq INTEGER NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY (seq, job)
) WITHOUT ROWID;
CREATE INDEX plan_jobs_by_job ON plan_jobs (job);

-- The decisions of a plan (decision_columns.py): all of them when `base` is 0, else what differs from that plan's.
CREATE TABLE plans (
    seq       INTEGER PRIMARY KEY,
    base      INTEGER NOT NULL,
    decisions BLOB NOT NULL
);
