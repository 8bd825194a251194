-- What is durable beside the World.
CREATE TABLE tasks (
    job_id    TEXT PRIMARY KEY,
    task_json TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE results (
    job_id TEXT PRIMARY KEY,
    value  TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- A token is known by its SHA-256 only.
CREATE TABLE tokens (
    hash    TEXT PRIMARY KEY,
    "user"  TEXT NOT NULL,
    role    TEXT NOT NULL CHECK (role IN ('viewer', 'user', 'admin')),
    created REAL NOT NULL
) WITHOUT ROWID;

-- Which job a client's key has made; `request` is the digest of what was asked for with it.
CREATE TABLE idempotency (
    key     TEXT PRIMARY KEY,
    job_id  TEXT NOT NULL,
    request TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created);
