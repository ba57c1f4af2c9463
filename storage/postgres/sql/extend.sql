update {{lock}} set expires_at = clock_timestamp() + $4 * interval '1 microsecond'
where name = $1 and owner = $2 and owner <> '' and number = $3
returning expires_at, clock_timestamp()
