-- storage.Decide for a holder that does not campaign. Everything it needs is in this one row, so a
-- renewal that waited for an election finds the new term here.
update {{lease}} set
	expires_at = clock_timestamp() + $4 * interval '1 microsecond',
	renewals = renewals + 1,
	last_pass_at = case when $5 > pass_seq then clock_timestamp() else last_pass_at end,
	pass_seq = greatest(pass_seq, $5)
where term = $2 and incarnation = $1 and $2 > $3 and {{eligible "$1"}}
