-- The guard of a report or a commit, for the statements after it: whether the server is the one whose
-- rows the caller has read, whether these are its rows (another's, if a copy was put in their place),
-- and whether they have all the events that its process was told of.
select set_config('emitd.store', case when $1 = ''
	or (pg_control_system()).system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) = split_part($1, '#', 1)
		and exists (select from {{counter}} c where c.store_id = $1 and c.head >= $2)
	then 'same' else 'another' end, true)
