-- The highest generation of a unit whose row was swept. The column daemon of a keyed unit, in all tables, has the daemon's ID
-- and the key, with a space in between; idx is 0.
ALTER TABLE ~meta ADD COLUMN generation_floor INTEGER NOT NULL DEFAULT 0;
