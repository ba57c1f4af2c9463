-- The first node that registers with a name names the cluster. This is a statement of its own, so
-- that the next one, which compares, sees what another first node has written meanwhile.
update {{counter}} set cluster = $1 where cluster = '' and $1 <> ''
