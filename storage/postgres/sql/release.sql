update {{lock}} set owner = '', expires_at = clock_timestamp()
where name = $1 and owner = $2 and owner <> '' and number = $3::bigint
