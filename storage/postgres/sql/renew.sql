-- Renews the lease of a leader that does not campaign, by the rules of storage.Decide. Everything that it needs is in
-- this one row, so a renewal that waited for an election finds the new term here.
update {{lease}} set
	expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond',
	renewals = renewals + 1,
	last_pass_at = case when $5::bigint > pass_seq then clock_timestamp() else last_pass_at end,
	pass_seq = greatest(pass_seq, $5::bigint)
where term = $2::bigint and incarnation = $1 and $2::bigint > $3::bigint and {{eligible "$1"}}
