update {{lock}} set renewals = renewals + 1, ttl = $4, expires_at = clock_timestamp() + $4 * interval '1 microsecond'
where name = $1 and owner = $2 and owner <> '' and number = $3
returning renewals, ttl, expires_at, clock_timestamp()
