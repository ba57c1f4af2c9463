-- The outbox. ~ stands for the table prefix. Times are nanoseconds since 1970 by the clock of the
-- host. Columns that scans look at come before those that may be long, which then need not be read.

-- The log. Rows are added at the end and deleted from the beginning. One transaction writes at a
-- time, so ids are in the order of the commits, and AUTOINCREMENT never repeats one that was seen.
CREATE TABLE ~outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    shard       INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 63),
    created_at  INTEGER NOT NULL,
    dedup_id    BLOB    NOT NULL CHECK (length(dedup_id) = 16),
    key         TEXT    NOT NULL DEFAULT '', -- '' = no order
    topic       TEXT    NOT NULL,
    type        TEXT    NOT NULL DEFAULT '',
    headers     TEXT    NOT NULL DEFAULT '', -- JSON object of strings, '' = none
    traceparent TEXT    NOT NULL DEFAULT '',
    tracestate  TEXT    NOT NULL DEFAULT '',
    payload     BLOB
);

-- Messages that are not due. The relay of their shard moves them into the log.
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
    instances       INTEGER NOT NULL, -- of the last claim that was not refused,
    instances_epoch INTEGER NOT NULL, -- and the highest epoch that claimed with this number
    paused          INTEGER NOT NULL DEFAULT 0,
    replayed        INTEGER NOT NULL DEFAULT 0, -- up to here messages may come again: the end of the log at a replay
    created_at      INTEGER NOT NULL
) WITHOUT ROWID;

-- Where a subscription stands. The rows of one cover all shards, none twice. What has an id up to
-- last is delivered, or in a lane, or dead. The rows of one claim have its bounds and one turn.
CREATE TABLE ~outbox_cursor (
    subscription TEXT    NOT NULL,
    lo           INTEGER NOT NULL,
    hi           INTEGER NOT NULL,
    claim_lo     INTEGER NOT NULL,
    claim_hi     INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    epoch        INTEGER NOT NULL, -- the generation of the relay that owns the row
    turn         INTEGER NOT NULL, -- raised by claims and operators: what a reader has in memory is void
    rev          INTEGER NOT NULL, -- raised by every write
    node         TEXT    NOT NULL DEFAULT '',
    updated_at   INTEGER NOT NULL,
    trouble      TEXT    NOT NULL DEFAULT '', -- why its owner delivers nothing
    PRIMARY KEY (subscription, lo)
) WITHOUT ROWID;

-- A lane is a key that waits (solo = 0), or one message alone: of no key, or a dead one put back.
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

-- The messages of lanes, copied from the log.
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
