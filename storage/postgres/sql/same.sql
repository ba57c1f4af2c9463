-- The guard of a report or a commit, for the statements after it. It checks that the server is the
-- one whose rows the caller has read, that these are its rows (not a copy of another server's), and
-- that they have all the events that the calling process has seen, and the newest heartbeat of its node ($3) that was
-- answered.
select set_config('emitd.store', case when $1 = ''
	or (pg_control_system()).system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) = split_part($1, '#', 1)
		and exists (select from {{counter}} c where c.store_id = $1 and c.head >= $2::bigint)
		and not exists (select from {{node}} n where n.incarnation = $3 and n.seq < $4::bigint)
	then 'same' else 'another' end, true)
