-- What the runs of a unit leave for later runs. Only the unit's present run writes it, behind its fence.
CREATE TABLE ~unit_state (
    daemon     TEXT    NOT NULL,
    idx        INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    saved_at   INTEGER NOT NULL,
    data       TEXT    NOT NULL,
    PRIMARY KEY (daemon, idx)
) WITHOUT ROWID;
