-- The cluster store. ~ stands for the table prefix. Times are nanoseconds since 1970 by the
-- store's clock, 0 = never; durations are nanoseconds; detail, traits and embargoes are JSON.

-- One row: which file this is, its clock, and the counters.
CREATE TABLE ~meta (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    file_id     TEXT    NOT NULL, -- random; part of the store's identity
    place       TEXT    NOT NULL, -- device and inode under which the latest writer found the file
    other_since INTEGER NOT NULL, -- when it became another store during this boot of the host; 0 = it did not
    boot_id     TEXT    NOT NULL, -- the boot of the host that clock_base belongs to
    clock_base  INTEGER NOT NULL, -- the store's clock at the boot
    latest      INTEGER NOT NULL, -- the latest time that was written, for hosts whose only clock is the wall clock
    head        INTEGER NOT NULL, -- number of the newest event
    lock_floor  INTEGER NOT NULL, -- highest number of a lock whose row was swept
    cluster     TEXT    NOT NULL  -- the cluster's name, set by the first node that registers; '' until then
);

-- The present and former members. A heartbeat writes only its own row, and no column that has an index.
CREATE TABLE ~node (
    incarnation        TEXT    PRIMARY KEY,
    id                 TEXT    NOT NULL,
    name               TEXT    NOT NULL,
    state              TEXT    NOT NULL,
    judged             TEXT    NOT NULL DEFAULT '',
    seq                INTEGER NOT NULL,
    heard              INTEGER NOT NULL DEFAULT 0,
    advert             TEXT    NOT NULL DEFAULT '', -- hash; see ~advert
    traits             TEXT    NOT NULL DEFAULT '{}',
    highest_term       INTEGER NOT NULL DEFAULT 0,
    highest_generation INTEGER NOT NULL DEFAULT 0,
    witnessed          INTEGER NOT NULL DEFAULT 0,
    registered_at      INTEGER NOT NULL,
    last_heartbeat_at  INTEGER NOT NULL,
    heard_at           INTEGER NOT NULL,
    ended_at           INTEGER NOT NULL DEFAULT 0,
    end_reason         TEXT    NOT NULL DEFAULT '',
    left_itself        INTEGER NOT NULL DEFAULT 0 -- it deregistered itself, so it is never revived
) WITHOUT ROWID;

-- What nodes advertise. Replicas of one program share one text.
CREATE TABLE ~advert (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;

-- One row: the present term. Only an election, a resignation or a loss changes it.
CREATE TABLE ~term (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    number      INTEGER NOT NULL,
    ordinal     INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    incarnation TEXT    NOT NULL,
    elected_at  INTEGER NOT NULL,
    vacant      INTEGER NOT NULL
);

-- One row: what renewals of the lease and the leader's passes write.
CREATE TABLE ~lease (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    expires_at   INTEGER NOT NULL,
    renewals     INTEGER NOT NULL,
    last_pass_at INTEGER NOT NULL,
    pass_seq     INTEGER NOT NULL
);

INSERT INTO ~term  VALUES (1, 0, 0, '', '', '', 0, 0);
INSERT INTO ~lease VALUES (1, 0, 0, 0, 0);

-- One row per unit for as long as its daemon is declared; it keeps its last generation.
CREATE TABLE ~unit (
    daemon              TEXT    NOT NULL,
    idx                 INTEGER NOT NULL,
    state               TEXT    NOT NULL,
    holder_name         TEXT    NOT NULL DEFAULT '',
    holder_id           TEXT    NOT NULL DEFAULT '',
    holder              TEXT    NOT NULL DEFAULT '', -- incarnation
    generation          INTEGER NOT NULL DEFAULT 0,
    term                INTEGER NOT NULL DEFAULT 0,
    since               INTEGER NOT NULL,
    assigned_at         INTEGER NOT NULL DEFAULT 0,
    revoked_at          INTEGER NOT NULL DEFAULT 0,
    acknowledge_timeout INTEGER NOT NULL DEFAULT 0,
    drain_timeout       INTEGER NOT NULL DEFAULT 0,
    reason              TEXT    NOT NULL DEFAULT '',
    forced              INTEGER NOT NULL DEFAULT 0,
    failures            INTEGER NOT NULL DEFAULT 0,
    error               TEXT    NOT NULL DEFAULT '',
    retired             INTEGER NOT NULL DEFAULT 0,
    embargoes           TEXT    NOT NULL DEFAULT '',
    failing_since       INTEGER NOT NULL DEFAULT 0,
    retry_at            INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (daemon, idx)
) WITHOUT ROWID;

-- For heartbeats, which read the units that their node holds.
CREATE INDEX ~unit_holder ON ~unit (holder) WHERE state NOT IN ('unassigned', 'deleted');

-- The generation that owns each unit's effects. Only StampFence writes it.
CREATE TABLE ~fence (
    daemon     TEXT    NOT NULL,
    idx        INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    stamped_at INTEGER NOT NULL,
    PRIMARY KEY (daemon, idx)
) WITHOUT ROWID;

-- The history, in commit order, without gaps.
CREATE TABLE ~event (
    seq          INTEGER PRIMARY KEY,
    at           INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    node         TEXT    NOT NULL,
    node_id      TEXT    NOT NULL,
    incarnation  TEXT    NOT NULL,
    daemon       TEXT    NOT NULL,
    idx          INTEGER,          -- NULL: not about a unit
    term         INTEGER NOT NULL,
    term_ordinal INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    reason       TEXT    NOT NULL,
    detail       TEXT
);

-- For heartbeats, which read the events about members.
CREATE INDEX ~event_member ON ~event (seq) WHERE kind GLOB 'node.*';

CREATE TABLE ~command (
    num        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    kind       TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    term       INTEGER NOT NULL,
    cooldown   INTEGER NOT NULL,
    args       TEXT,
    created_at INTEGER NOT NULL,
    done_at    INTEGER NOT NULL,
    result     TEXT    NOT NULL
);

-- For heartbeats, which read the commands that wait.
CREATE INDEX ~command_waiting ON ~command (num) WHERE done_at = 0;

CREATE TABLE ~lock (
    name       TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    renewals   INTEGER NOT NULL,
    ttl        INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
