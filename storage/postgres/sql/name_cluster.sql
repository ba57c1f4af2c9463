-- The first node that registers with a name names the cluster. This is a statement of its own: the next one compares the
-- names, and must see the name that another first node has written meanwhile.
update {{counter}} set cluster = $1 where cluster = '' and $1 <> ''
