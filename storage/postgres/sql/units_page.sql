-- Reads the next units in order, for a process that reads all of them. So many that they fit into one message only for a
-- small cluster: a hundred thousand take longer than a call may.
select u from {{unit}} u where (u.daemon, u.index) > ($1, $2::integer) order by u.daemon, u.index limit $3
