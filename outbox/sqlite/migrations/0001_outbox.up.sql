-- The outbox. ~ stands for the table prefix. Times are nanoseconds since 1970 by the clock of the
-- host. Columns that scans read come before columns that may be long, so a scan need not read those.

-- The log. Rows are added at the end and deleted from the beginning. One transaction writes at a
-- time, so ids are in the order of the commits. AUTOINCREMENT never repeats an id, even a deleted one.
CREATE TABLE ~outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    shard       INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 63),
    created_at  INTEGER NOT NULL,
    dedup_id    BLOB    NOT NULL CHECK (length(dedup_id) = 16),
    key         TEXT    NOT NULL DEFAULT '', -- '': the message has no order
    topic       TEXT    NOT NULL,
    type        TEXT    NOT NULL DEFAULT '',
    headers     TEXT    NOT NULL DEFAULT '', -- JSON object of strings, '' = none
    traceparent TEXT    NOT NULL DEFAULT '',
    tracestate  TEXT    NOT NULL DEFAULT '',
    payload     BLOB
);

-- Messages that are not due yet. The relay of their shard moves them into the log when they are.
CREATE TABLE ~outbox_delayed (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    shard       INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 63),
    not_before  INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    dedup_id    BLOB    NOT NULL CHECK (length(dedup_id) = 16),
    key         TEXT    NOT NULL DEFAULT '',
    topic       TEXT    NOT NULL,
    type        TEXT    NOT NULL DEFAULT '',
    headers     TEXT    NOT NULL DEFAULT '',
    traceparent TEXT    NOT NULL DEFAULT '',
    tracestate  TEXT    NOT NULL DEFAULT '',
    payload     BLOB
);
CREATE INDEX ~outbox_delayed_due ON ~outbox_delayed (not_before, id, shard);

CREATE TABLE ~outbox_subscription (
    name            TEXT    PRIMARY KEY,
    instances       INTEGER NOT NULL, -- of the last claim that was accepted
    instances_epoch INTEGER NOT NULL, -- the highest epoch that claimed with this number
    paused          INTEGER NOT NULL DEFAULT 0,
    replayed        INTEGER NOT NULL DEFAULT 0, -- the end of the log at the last replay: messages up to here may be delivered again
    created_at      INTEGER NOT NULL
) WITHOUT ROWID;

-- The cursors of the subscriptions. The rows of one subscription cover each shard exactly once. Messages
-- up to the id last are delivered, or stand in a lane, or are dead. The rows of one claim have its bounds
-- and the same turn.
CREATE TABLE ~outbox_cursor (
    subscription TEXT    NOT NULL,
    lo           INTEGER NOT NULL,
    hi           INTEGER NOT NULL,
    claim_lo     INTEGER NOT NULL,
    claim_hi     INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    epoch        INTEGER NOT NULL, -- the generation of the relay that owns the row
    turn         INTEGER NOT NULL, -- raised by claims and by operators: a reader then discards what it has in memory
    rev          INTEGER NOT NULL, -- raised by every write
    node         TEXT    NOT NULL DEFAULT '',
    updated_at   INTEGER NOT NULL,
    trouble      TEXT    NOT NULL DEFAULT '', -- why the owner delivers nothing; empty if it delivers
    PRIMARY KEY (subscription, lo)
) WITHOUT ROWID;

-- A lane is a key that waits (solo = 0), or a single message: one without a key, or a dead one that was put back.
CREATE TABLE ~outbox_lane (
    subscription TEXT    NOT NULL,
    shard        INTEGER NOT NULL,
    key          TEXT    NOT NULL,
    solo         INTEGER NOT NULL,
    held         INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER NOT NULL,
    cause        TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (subscription, shard, key, solo)
) WITHOUT ROWID;
CREATE INDEX ~outbox_lane_due ON ~outbox_lane (subscription, held, next_at, shard);

-- The messages of the lanes, copied from the log.
CREATE TABLE ~outbox_parked (
    subscription TEXT    NOT NULL,
    id           INTEGER NOT NULL,
    shard        INTEGER NOT NULL,
    key          TEXT    NOT NULL,
    solo         INTEGER NOT NULL,
    parked_at    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    dedup_id     BLOB    NOT NULL,
    topic        TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    traceparent  TEXT    NOT NULL,
    tracestate   TEXT    NOT NULL,
    payload      BLOB,
    PRIMARY KEY (subscription, id)
);
CREATE INDEX ~outbox_parked_lane ON ~outbox_parked (subscription, shard, key, solo, id);

CREATE TABLE ~outbox_dead (
    subscription TEXT    NOT NULL,
    id           INTEGER NOT NULL,
    shard        INTEGER NOT NULL,
    key          TEXT    NOT NULL,
    attempts     INTEGER NOT NULL,
    died_at      INTEGER NOT NULL,
    cause        TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    dedup_id     BLOB    NOT NULL,
    topic        TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    traceparent  TEXT    NOT NULL,
    tracestate   TEXT    NOT NULL,
    payload      BLOB,
    PRIMARY KEY (subscription, id)
);
