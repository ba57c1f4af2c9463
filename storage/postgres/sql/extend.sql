update {{lock}} set renewals = renewals + 1, ttl = $4::bigint, expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
where name = $1 and owner = $2 and owner <> '' and number = $3::bigint
returning renewals, ttl, expires_at, clock_timestamp()
